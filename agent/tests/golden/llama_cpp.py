"""llama.cpp's tokenizer, for the scripts beside it."""

import ctypes


class LlamaCpp:
    """Tokenises with the shared libraries in a directory (npm @node-llama-cpp/linux-x64, bins/linux-x64)."""

    def __init__(self, libraries):
        self.libraries = libraries
        for name in ["libggml-base.so", "libggml.v0.5.0.so"]:
            if (libraries / name).exists():
                ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
        self.lib = ctypes.CDLL(str(next(libraries.glob("libllama.v*.so"))), mode=ctypes.RTLD_GLOBAL)
        self.log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        self.lib.llama_log_set(self.log, None)
        self.lib.llama_backend_init()
        ctypes.CDLL(str(libraries / "libggml.v0.5.0.so")).ggml_backend_load_all_from_path(str(libraries).encode())
        self.loaded = {}

    def vocab(self, path):
        """The vocabulary of a GGUF file; the model stays loaded."""
        if path not in self.loaded:
            class Params(ctypes.Structure):
                _fields_ = [("bytes", ctypes.c_ubyte * 512)]
            self.lib.llama_model_default_params.restype = Params
            self.lib.llama_model_load_from_file.restype = ctypes.c_void_p
            self.lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, Params]
            model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
            assert model, f"llama.cpp does not load {path}"
            self.lib.llama_model_get_vocab.restype = ctypes.c_void_p
            self.lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
            self.loaded[path] = self.lib.llama_model_get_vocab(model)
        return self.loaded[path]

    def ids(self, path, texts, special=False):
        """Ids of each text; names of special tokens are those tokens only if asked."""
        vocab = self.vocab(path)
        self.lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32),
                                            ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
        out = []
        for text in texts:
            raw = text.encode()
            buffer = (ctypes.c_int32 * (len(raw) + 16))()
            n = self.lib.llama_tokenize(vocab, raw, len(raw), buffer, len(buffer), False, special)
            assert n >= 0
            out.append(list(buffer[:n]))
        return out

    def text(self, path, ids):
        """Text of ids, special tokens shown."""
        vocab = self.vocab(path)
        self.lib.llama_token_to_piece.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32,
                                                  ctypes.c_int32, ctypes.c_bool]
        out = b""
        for id in ids:
            buffer = ctypes.create_string_buffer(256)
            n = self.lib.llama_token_to_piece(vocab, id, buffer, 256, 0, True)
            out += buffer.raw[:n]
        return out.decode()

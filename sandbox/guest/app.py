"""The interpreter side of the sandbox: booted once at build time, copied for every instance.

The host sends one JSON request at a time to `handle` and gets one JSON answer (README.md lists both). Code under test shares
this interpreter and may patch whatever it can reach, so everything needed after the first line of foreign code is captured in
closures here, types are compared with `is`, and the host still treats each answer as untrusted bytes.
"""

import ast
import asyncio
import builtins
import gc
import importlib
import io
import linecache
import os
import random
import sys
import traceback
import types
from _json import encode_basestring_ascii, make_scanner

import wit_world
from wit_world.imports import host

# A module that is not loaded here does not exist at run time: the standard library is not mounted.
PRELOAD = """
__future__ _ast _strptime abc argparse array ast asyncio base64 bdb binascii bisect builtins calendar cmath cmd code codecs
collections collections.abc colorsys concurrent.futures.thread configparser contextlib contextvars copy copyreg csv dataclasses datetime
decimal difflib dis doctest email.message email.parser email.utils encodings.ascii encodings.idna encodings.latin_1 encodings.hex_codec
encodings.raw_unicode_escape encodings.rot_13 encodings.unicode_escape encodings.utf_16 encodings.utf_16_be encodings.utf_16_le
encodings.utf_32 encodings.utf_8_sig enum errno fnmatch fractions functools getopt glob graphlib gzip hashlib heapq hmac html
html.parser importlib.util inspect io ipaddress itertools json keyword linecache locale logging math mimetypes numbers opcode
operator os pathlib pickle pkgutil platform pprint profile pstats queue quopri random re reprlib sched secrets select selectors
shelve shlex shutil signal socket sqlite3 stat statistics string string.templatelib struct subprocess sys tempfile textwrap threading
time timeit token tokenize tomllib trace traceback types typing unicodedata unittest unittest.async_case unittest.mock urllib.parse
urllib.request uuid warnings weakref xml.dom.minidom xml.etree.ElementTree zipfile zlib zoneinfo
""".split()


def _preload():
    """Imports what this build has of PRELOAD; returns what it lacks."""
    missing = []
    for name in PRELOAD:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    return missing


class NotPlain(Exception):
    """A value that cannot leave as plain data."""


class CandidateError(Exception):
    """The candidate of a test failed in a way that has no builtin exception."""


class CandidateGone(BaseException):
    """The candidate's instance ended; it flies through `except Exception` so that no test can go on."""


for _error in (NotPlain, CandidateError, CandidateGone):
    _error.__module__ = "builtins"  # tracebacks name them bare

MAX_DEPTH = 64
MAX_NODES = 500_000
MAX_BYTES = 8 << 20
MAX_INT_BITS = 332_192  # 100,000 decimal digits
MAX_MESSAGE = 400


def _wire():
    """Builds the encoder and decoder of plain values over captured names only."""
    exact, length, join = type, len, str.join
    none, boolean, integer, real, text, octets = type(None), bool, int, float, str, bytes
    array, record, bag, frozen, mapping = list, tuple, set, frozenset, dict
    int_bits, int_text, float_hex, bytes_hex = int.bit_length, int.__repr__, float.hex, bytes.hex
    utf8, quote, pairs, append, order = str.encode, encode_basestring_ascii, dict.items, list.append, list.sort
    float_back, bytes_back = float.fromhex, bytes.fromhex
    refuse, unicode_error = NotPlain, UnicodeEncodeError
    type_name = type.__dict__["__name__"].__get__
    max_depth, max_nodes, max_bytes, max_int_bits = MAX_DEPTH, MAX_NODES, MAX_BYTES, MAX_INT_BITS

    def spend(left, size):
        left[0] -= 1
        left[1] -= size
        if left[0] < 0 or left[1] < 0:
            raise refuse("value is too large to leave as plain data")

    def items(values, depth, left):
        parts = []
        for value in values:
            append(parts, encode(value, depth + 1, left))
        return parts

    def encode(value, depth, left):
        if depth > max_depth:
            raise refuse("value is nested too deeply to leave as plain data")
        kind = exact(value)
        if kind is none:
            spend(left, 4)
            return "null"
        if kind is boolean:
            spend(left, 5)
            return "true" if value is True else "false"
        if kind is integer:
            if int_bits(value) > max_int_bits:
                raise refuse("int has more than 100,000 digits")
            digits = int_text(value)
            spend(left, length(digits) + 8)
            return '{"i":"' + digits + '"}'
        if kind is real:
            spend(left, 32)
            return '{"f":"' + float_hex(value) + '"}'
        if kind is text:
            try:
                utf8(value, "utf-8")
            except unicode_error:
                raise refuse("str holds a lone surrogate") from None
            spend(left, length(value) + 2)
            quoted = quote(value)
            spend(left, length(quoted) - length(value))  # escapes
            return quoted
        if kind is octets:
            spend(left, 2 * length(value) + 8)
            return '{"b":"' + bytes_hex(value) + '"}'
        if kind is array:
            spend(left, length(value) + 2)
            return "[" + join(",", items(value, depth, left)) + "]"
        if kind is record:
            spend(left, length(value) + 8)
            return '{"t":[' + join(",", items(value, depth, left)) + "]}"
        if kind is bag or kind is frozen:
            spend(left, length(value) + 8)
            parts = items(value, depth, left)
            order(parts)
            return '{"s":[' + join(",", parts) + "]}"
        if kind is mapping:
            spend(left, 3 * length(value) + 8)
            parts = []
            for key, item in pairs(value):
                append(parts, "[" + encode(key, depth + 1, left) + "," + encode(item, depth + 1, left) + "]")
            return '{"d":[' + join(",", parts) + "]}"
        try:
            name = type_name(kind)
            name = name[:80] if exact(name) is text else "?"
        except BaseException:
            name = "?"
        raise refuse("a value of type '" + name + "' is not plain data")

    def to_wire(value):
        return encode(value, 0, [max_nodes, max_bytes])

    def from_wire(wire, hashable=False):
        kind = exact(wire)
        if kind is array:
            return [from_wire(item) for item in wire]
        if kind is not mapping:
            return wire
        ((tag, body),) = pairs(wire)
        if tag == "i":
            return integer(body)
        if tag == "f":
            return float_back(body)
        if tag == "b":
            return bytes_back(body)
        if tag == "t":
            return record([from_wire(item, hashable) for item in body])
        if tag == "s":
            values = [from_wire(item, True) for item in body]
            return frozen(values) if hashable else bag(values)
        return {from_wire(key, True): from_wire(item) for key, item in body}

    return to_wire, from_wire


def _gentle_open():
    """The builtin `open`, except that `open(0).read()` does not take standard input from the turns that follow."""
    real, exact, integer = io.open, type, int

    def open(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if exact(file) is integer and 0 <= file <= 2:
            closefd = False
        return real(file, mode, buffering, encoding, errors, newline, closefd, opener)

    open.__qualname__, open.__module__, open.__doc__ = "open", "_io", real.__doc__
    return open


def _adapt():
    """Fits the standard library to a world of one thread, no sockets and a virtual clock."""
    builtins.open = _gentle_open()
    sys.argv = [""]
    sys.path[:] = ["/work"]
    sys.dont_write_bytecode = True
    sys.path_importer_cache.clear()
    loop = asyncio.SelectorEventLoop  # it wakes itself through a socket, which only other threads need
    loop._make_self_pipe = loop._close_self_pipe = loop._write_to_self = lambda self: None


class _Scan:
    """What `make_scanner` reads its settings from."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo = {}


def _build():
    to_wire, from_wire = _wire()
    scan, quote, call_host = make_scanner(_Scan), encode_basestring_ascii, host.call
    get_digits, set_digits = sys.get_int_max_str_digits, sys.set_int_max_str_digits
    exact, length, getter, join = type, len, dict.get, str.join
    integer, text, array, bag, mapping = int, str, list, set, dict
    clear_list, extend_list, clear_set, update_set, clear_dict, update_dict = (
        list.clear, list.extend, set.clear, set.update, dict.clear, dict.update)
    compiler, execute, evaluate, opener, strip, split_lines = compile, exec, eval, io.open, str.strip, str.splitlines
    any_error, exit_error, user_error, wrong_type, no_name = BaseException, SystemExit, Exception, TypeError, NameError
    not_plain, candidate_error, candidate_gone = NotPlain, CandidateError, CandidateGone
    type_name = type.__dict__["__name__"].__get__
    type_mro = type.__dict__["__mro__"].__get__
    format_error, lines_cache = traceback.format_exception, linecache.cache
    system, path_root, chdir, reseed, max_message = sys, "/work", os.chdir, random.seed, MAX_MESSAGE
    parse, bare_expression, expression_tree, represent = ast.parse, ast.Expr, ast.Expression, repr
    append, this_file, kept_frames, max_causes = list.append, __file__, 20, 5
    known = {name: error for name, error in vars(builtins).items()
             if isinstance(error, type) and issubclass(error, Exception)}
    names = {error: name for name, error in known.items()}
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    namespace = main.__dict__
    state = {"started": False, "stdin": False, "count": 0}

    def stream(number, mode, line_buffering):
        raw = opener(number, mode, closefd=False, buffering=8192)
        return io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape" if number == 0 else "backslashreplace",
                                newline=None if number == 0 else "\n", line_buffering=line_buffering)

    feed, out, err = stream(0, "rb", False), stream(1, "wb", True), stream(2, "wb", True)

    def restore_streams():
        nonlocal out, err
        if out.closed:
            out = stream(1, "wb", True)
        if err.closed:
            err = stream(2, "wb", True)
        system.stdout = system.__stdout__ = out
        system.stderr = system.__stderr__ = err

    def flush():
        for pipe in (system.stdout, system.stderr, out, err):
            try:
                pipe.flush()
            except any_error:
                pass

    def start(request):
        nonlocal feed
        fed = getter(request, "stdin") is True
        if not state["started"]:
            state["started"] = True
            chdir(path_root)
            reseed()
        if fed or state["stdin"] or feed.closed:
            feed = stream(0, "rb", False)
            state["stdin"] = fed
        system.stdin = system.__stdin__ = feed
        restore_streams()

    def source_name(source):
        state["count"] += 1
        name = "<python-" + integer.__repr__(state["count"]) + ">"
        lines_cache[name] = (length(source), None, split_lines(source, True), name)
        return name

    def cut(value):
        if exact(value) is not text:
            return ""
        return value if length(value) <= max_message else value[:max_message] + "..."

    def name_of(error):
        try:
            name = type_name(exact(error))
            return cut(name) if exact(name) is text else "?"
        except any_error:
            return "?"

    def message_of(error):
        try:
            return cut(text(error))
        except any_error:
            return "<unprintable>"

    def ancestors(error):
        try:
            return [names[kind] for kind in type_mro(exact(error)) if kind in names]
        except any_error:
            return []

    def printable(value):
        return quote(value.encode("utf-8", "backslashreplace").decode("utf-8"))

    def tidy(error, level):
        """Takes this file's frames, and most of a very deep stack, out of a traceback; returns how many it left out."""
        frames, frame = [], error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename != this_file:
                append(frames, frame)
            frame = frame.tb_next
        skipped = length(frames) - 2 * kept_frames
        if skipped > 0:
            frames = frames[:kept_frames] + frames[-kept_frames:]
        else:
            skipped = 0
        follower = None
        for frame in frames[::-1]:
            frame.tb_next = follower
            follower = frame
        error.__traceback__ = follower
        if level < max_causes:
            for cause in (error.__cause__, error.__context__):
                if cause is not None:
                    tidy(cause, level + 1)
        return skipped

    def raised(error):
        """The answer for an exception; its traceback goes to stderr without this file's frames."""
        kind, message, bases = name_of(error), message_of(error), ancestors(error)
        try:
            skipped = tidy(error, 0)
            lines = format_error(exact(error), error, error.__traceback__)
            if skipped:
                lines.insert(length(lines) - 1, "  [" + integer.__repr__(skipped) + " frames left out]\n")
            err.write(join("", lines))
        except any_error:
            try:
                err.write(kind + ": " + message + "\n")
            except any_error:
                pass
        return ('"status":"raised","kind":' + printable(kind) + ',"message":' + printable(message)
                + ',"bases":[' + join(",", [quote(name) for name in bases]) + "]")

    def left(error):
        """The answer for SystemExit, with the exit code the interpreter would have used."""
        try:
            code = error.code
        except any_error:
            code = 1
        if code is None:
            code = 0
        elif exact(code) is not integer:
            try:
                err.write(text(code) + "\n")
            except any_error:
                pass
            code = 1
        return '"status":"exited","code":' + integer.__repr__(code & 0xFF)

    def guarded(job):
        """Runs `job`, which returns the answer's fields, and turns whatever leaves it into fields."""
        try:
            return job()
        except exit_error as error:
            return left(error)
        except any_error as error:
            try:
                return raised(error)
            except any_error:
                return '"status":"raised","kind":"?","message":"<unprintable>","bases":[]'

    def value_fields(value):
        digits = get_digits()
        set_digits(0)
        try:
            return '"status":"ok","value":' + to_wire(value)
        finally:
            set_digits(digits)

    def find(name):
        found = getter(namespace, name, state)
        if found is not state:
            return found
        if "." in name or "(" in name:
            return evaluate(compiler(name, "<call>", "eval", 0, True), namespace)
        raise no_name("name '" + name + "' is not defined")

    def do_exec(request):
        source = request["code"]
        name = source_name(source)
        if getter(request, "echo") is True:
            tree = parse(source, name)
            if tree.body and exact(tree.body[-1]) is bare_expression:
                last = expression_tree(tree.body.pop().value)
                execute(compiler(tree, name, "exec", 0, True), namespace)
                value = evaluate(compiler(last, name, "eval", 0, True), namespace)
                if value is not None:
                    system.stdout.write(represent(value) + "\n")
                return '"status":"ok"'
        execute(compiler(source, name, "exec", 0, True), namespace)
        return '"status":"ok"'

    def do_eval(request):
        source = strip(request["code"])
        return value_fields(evaluate(compiler(source, source_name(source), "eval", 0, True), namespace))

    def do_call(request):
        args = [from_wire(item) for item in request["args"]]
        named = {name: from_wire(item) for name, item in request["kwargs"].items()} if "kwargs" in request else {}
        fields = value_fields(find(request["function"])(*args, **named))
        if getter(request, "return_args") is True:
            digits = get_digits()
            set_digits(0)
            try:
                fields += ',"args":' + to_wire(args)
            except not_plain:
                pass  # the caller then keeps its own
            finally:
                set_digits(digits)
        return fields

    def copy_back(target, source):
        """Shows the caller what the candidate did to a mutable argument."""
        kind = exact(target)
        if kind is not exact(source):
            return
        if kind is array:
            clear_list(target)
            extend_list(target, source)
        elif kind is bag:
            clear_set(target)
            update_set(target, source)
        elif kind is mapping:
            clear_dict(target)
            update_dict(target, source)

    def proxy_of(name, nonce):
        """A function whose calls cross to the candidate through the host, as plain data."""

        def proxy(*args, **named):
            digits = get_digits()
            set_digits(0)
            try:
                sent = to_wire([*args])
                fields = '{"nonce":' + quote(nonce) + ',"function":' + quote(name) + ',"args":' + sent
                if named:
                    fields += ',"kwargs":{' + join(",", [
                        quote(key) + ":" + to_wire(item) for key, item in named.items()]) + "}"
            except not_plain as error:
                raise wrong_type("a candidate takes plain data: " + text(error)) from None
            finally:
                set_digits(digits)
            answer, _ = scan(call_host(fields + "}"), 0)
            if "value" in answer:
                set_digits(0)
                try:
                    value = from_wire(answer["value"])
                    after = from_wire(answer["args"]) if "args" in answer else []
                finally:
                    set_digits(digits)
                for target, source in zip(args, after):
                    copy_back(target, source)
                return value
            if "gone" in answer:
                raise candidate_gone(answer["gone"])
            if "raised" in answer:
                for base in answer["bases"]:
                    try:
                        error = known[base](answer["message"])
                    except any_error:
                        continue
                    break
                else:
                    error = candidate_error(answer["raised"] + ": " + answer["message"])
                raise error
            raise candidate_error(text(getter(answer, "refused", "no answer")))

        proxy.__name__ = proxy.__qualname__ = name
        return proxy

    def do_exec_against(request):
        namespace[request["name"]] = proxy_of(request["name"], request["nonce"])
        return do_exec(request)

    jobs = {"exec": do_exec, "eval": do_eval, "call": do_call, "exec_against": do_exec_against}

    def handle(text_in):
        digits = get_digits()
        set_digits(0)
        try:
            request, _ = scan(text_in, 0)
        finally:
            set_digits(digits)

        def job():
            start(request)
            return jobs[request["op"]](request)

        fields = guarded(job)
        flush()
        return '{"nonce":' + quote(request["nonce"]) + "," + fields + "}"

    def warm():
        """Runs each path once so that its code and caches are in the frozen heap, then forgets it."""
        nonlocal out, err
        state["started"] = True
        real, (out, err) = (out, err), (io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO()))
        for _ in range(3):
            for request in (
                '{"nonce":"0","op":"exec","code":"x = 1\\ndef f(a, *rest):\\n    return a\\nprint(f(x))"}',
                '{"nonce":"0","op":"exec","code":"x + 1","echo":true}',
                '{"nonce":"0","op":"exec","code":"import math\\n1 / 0"}',
                '{"nonce":"0","op":"exec","code":"raise SystemExit(3)"}',
                '{"nonce":"0","op":"exec","code":"def g(:"}',
                '{"nonce":"0","op":"eval","code":"[1, 2.5, (None, True), {\'a\': {1, 2}}, b\'x\']"}',
                '{"nonce":"0","op":"call","function":"f","args":[[{"i":"1"},{"f":"0x1p+0"},{"t":[]},{"s":["a"]},{"d":[["k",null]]}]]}',
                '{"nonce":"0","op":"eval","code":"f"}',
            ):
                handle(request)
        out, err = real
        namespace.clear()
        namespace.update(types.ModuleType("__main__").__dict__)
        namespace["__builtins__"] = builtins
        lines_cache.clear()
        state.update(started=False, stdin=False, count=0)
        restore_streams()

    return handle, warm


_missing = _preload()
if _missing:
    raise ImportError("not in this build: " + "; ".join(_missing))
_adapt()
handle, _warm = _build()
_warm()
del _warm, _missing, _error
gc.collect()
gc.freeze()


class WitWorld(wit_world.WitWorld):
    """The component's exports."""

    def handle(self, request: str) -> str:
        """Answers one request of the host."""
        return handle(request)

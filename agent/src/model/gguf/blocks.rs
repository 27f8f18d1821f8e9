//! Blocks of quantised values, decoded to f32 in the order of operations of ggml's reference.

/// How the values of a tensor are stored: blocks of a fixed number of values and bytes.
#[derive(Debug)]
pub(super) struct Encoding {
    /// Code in the file.
    code: u32,
    /// ggml's name.
    pub(super) name: &'static str,
    /// Values of a block.
    pub(super) values: usize,
    /// Bytes of a block.
    pub(super) bytes: usize,
    decode: fn(&[u8], &mut [f32]),
}

/// Values of the larger blocks.
const SUPER: usize = 256;

/// Levels of the non-linear 4-bit encodings.
const IQ4: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

static ENCODINGS: [Encoding; 16] = [
    encoding(0, "F32", 1, 4, f32),
    encoding(1, "F16", 1, 2, f16),
    encoding(30, "BF16", 1, 2, bf16),
    encoding(2, "Q4_0", 32, 18, q4_0),
    encoding(3, "Q4_1", 32, 20, q4_1),
    encoding(6, "Q5_0", 32, 22, q5_0),
    encoding(7, "Q5_1", 32, 24, q5_1),
    encoding(8, "Q8_0", 32, 34, q8_0),
    encoding(10, "Q2_K", SUPER, 84, q2_k),
    encoding(11, "Q3_K", SUPER, 110, q3_k),
    encoding(12, "Q4_K", SUPER, 144, q4_k),
    encoding(13, "Q5_K", SUPER, 176, q5_k),
    encoding(14, "Q6_K", SUPER, 210, q6_k),
    encoding(20, "IQ4_NL", 32, 18, iq4_nl),
    encoding(23, "IQ4_XS", SUPER, 136, iq4_xs),
    encoding(28, "F64", 1, 8, f64),
];

const fn encoding(
    code: u32,
    name: &'static str,
    values: usize,
    bytes: usize,
    decode: fn(&[u8], &mut [f32]),
) -> Encoding {
    Encoding {
        code,
        name,
        values,
        bytes,
        decode,
    }
}

impl Encoding {
    pub(super) fn of(code: u32) -> Option<&'static Self> {
        ENCODINGS.iter().find(|e| e.code == code)
    }

    pub(super) fn all() -> impl Iterator<Item = &'static Self> {
        ENCODINGS.iter()
    }

    /// Values of whole blocks.
    pub(super) fn decode(&self, raw: &[u8]) -> Vec<f32> {
        let mut out = vec![0.0; raw.len() / self.bytes * self.values];
        for (block, values) in raw
            .chunks_exact(self.bytes)
            .zip(out.chunks_exact_mut(self.values))
        {
            (self.decode)(block, values);
        }
        out
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn f32(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

fn f64(block: &[u8], out: &mut [f32]) {
    let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|i| block[i]);
    out[0] = f64::from_le_bytes(bytes) as f32;
}

fn f16(block: &[u8], out: &mut [f32]) {
    out[0] = half(block, 0);
}

fn bf16(block: &[u8], out: &mut [f32]) {
    out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

/// The low halves of 16 bytes are values 0..16, the high halves values 16..32.
fn nibbles(codes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { codes[i] & 15 } else { codes[i - 16] >> 4 })
}

/// [`nibbles`] with a fifth bit each, value `i`'s in bit `i` of four bytes.
fn fives(high: &[u8], codes: &[u8]) -> [u8; 32] {
    let mut out = nibbles(codes);
    for (i, code) in out.iter_mut().enumerate() {
        *code |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    out
}

fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *y = d * f32::from(i16::from(q) - 8);
    }
}

fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (y, q) in out.iter_mut().zip(nibbles(&block[4..])) {
        *y = d * f32::from(q) + m;
    }
}

fn q5_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, q) in out.iter_mut().zip(fives(&block[2..6], &block[6..])) {
        *y = d * f32::from(i16::from(q) - 16);
    }
}

fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (y, q) in out.iter_mut().zip(fives(&block[4..8], &block[8..])) {
        *y = d * f32::from(q) + m;
    }
}

fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, q) in out.iter_mut().zip(&block[2..]) {
        *y = d * f32::from(*q as i8);
    }
}

/// 16 groups of 16: 2-bit codes, 4-bit scales and minima.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, codes) = (&block[..16], &block[16..80]);
    let (d, min) = (half(block, 80), half(block, 82));
    for (group, (y, scale)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let (scale, offset) = (d * f32::from(scale & 15), min * f32::from(scale >> 4));
        let (from, shift) = (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2);
        for (y, q) in y.iter_mut().zip(&codes[from..]) {
            *y = scale * f32::from(q >> shift & 3) - offset;
        }
    }
}

/// 16 groups of 16: 2-bit codes, a mask of third bits, 6-bit scales.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let (mask, codes, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half(block, 108);
    for (group, y) in out.chunks_exact_mut(16).enumerate() {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * f32::from(i16::from(low | high << 4) - 32);
        let (half, part) = (group % 2 * 16, group % 8 / 2);
        let from = group / 8 * 32 + half;
        for (i, y) in y.iter_mut().enumerate() {
            let third = mask[half + i] >> (group / 8 * 4 + part) & 1;
            let code = codes[from + i] >> (2 * part) & 3;
            *y = scale * f32::from(i16::from(code) - if third == 1 { 0 } else { 4 });
        }
    }
}

/// The 6-bit scale and minimum of group `j` of eight, from 12 bytes.
fn scale_and_min(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
            packed[j + 4] >> 4 | packed[j] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, min) = (half(block, 0), half(block, 2));
    for (group, y) in out.chunks_exact_mut(32).enumerate() {
        let (scale, offset) = scale_and_min(&block[4..16], group);
        let (scale, offset) = (d * scale, min * offset);
        let codes = &block[16 + group / 2 * 32..];
        for (y, q) in y.iter_mut().zip(codes) {
            *y = scale * f32::from(q >> (group % 2 * 4) & 15) - offset;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, min) = (half(block, 0), half(block, 2));
    let high = &block[16..48];
    for (group, y) in out.chunks_exact_mut(32).enumerate() {
        let (scale, offset) = scale_and_min(&block[4..16], group);
        let (scale, offset) = (d * scale, min * offset);
        let codes = &block[48 + group / 2 * 32..];
        for ((y, q), high) in y.iter_mut().zip(codes).zip(high) {
            let code = q >> (group % 2 * 4) & 15 | (high >> group & 1) << 4;
            *y = scale * f32::from(code) - offset;
        }
    }
}

/// 16 groups of 16: 6-bit codes, signed 8-bit scales.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half(block, 208);
    for (group, (y, scale)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let scale = d * f32::from(*scale as i8);
        let (part, quarter, within) = (group / 8, group % 8 / 2, group % 2 * 16);
        for (i, y) in y.iter_mut().enumerate() {
            let l = low[part * 64 + quarter % 2 * 32 + within + i] >> (quarter / 2 * 4) & 15;
            let h = high[part * 32 + within + i] >> (2 * quarter) & 3;
            *y = scale * f32::from(i16::from(l | h << 4) - 32);
        }
    }
}

fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (y, q) in out.iter_mut().zip(nibbles(&block[2..])) {
        *y = d * f32::from(IQ4[usize::from(q)]);
    }
}

/// 8 groups of 32: indices into the levels, 6-bit scales.
fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (group, y) in out.chunks_exact_mut(32).enumerate() {
        let low = i32::from(block[4 + group / 2] >> (group % 2 * 4) & 15);
        let scale = d * ((low | i32::from(high >> (2 * group) & 3) << 4) - 32) as f32;
        for (y, q) in y.iter_mut().zip(nibbles(&block[8 + group * 16..])) {
            *y = scale * f32::from(IQ4[usize::from(q)]);
        }
    }
}

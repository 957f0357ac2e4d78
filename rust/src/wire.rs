//! Protobuf framing by hand: padded lengths, offsets and jumps are what prost does not do.

/// Wire types of protobuf.
pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const LEN: u8 = 2;
pub(crate) const FIXED32: u8 = 5;

/// Field that no reader knows: covers what is not in use.
pub(crate) const FILLER: u32 = 15999;

/// A filler's header: tag of three bytes, length padded to five. Eight bytes, so that one aligned
/// write replaces it.
pub(crate) const FILLER_HEADER: u64 = 8;

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[allow(clippy::cast_possible_truncation)] // the low seven bits are meant
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[allow(clippy::cast_possible_truncation)] // below 0x80
    out.push(value as u8);
}

/// A varint padded to `width` bytes. Readers of ONNX accept at most five.
pub(crate) fn put_padded(out: &mut Vec<u8>, mut value: u64, width: usize) {
    for i in 0..width {
        let more = if i + 1 < width { 0x80 } else { 0 };
        #[allow(clippy::cast_possible_truncation)] // the low seven bits are meant
        out.push((value as u8 & 0x7f) | more);
        value >>= 7;
    }
}

pub(crate) fn put_tag(out: &mut Vec<u8>, field: u32, wire: u8) {
    put_varint(out, u64::from(field) << 3 | u64::from(wire));
}

/// A length-delimited field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_tag(out, field, LEN);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_uint(out: &mut Vec<u8>, field: u32, value: u64) {
    put_tag(out, field, VARINT);
    put_varint(out, value);
}

/// Opens a length-delimited field whose length, of five bytes, is set by [`end`].
pub(crate) fn begin(out: &mut Vec<u8>, field: u32) -> usize {
    put_tag(out, field, LEN);
    out.extend_from_slice(&[0; 5]);
    out.len()
}

/// Sets the length of the field opened at `start` to what was put since, plus `beyond` bytes that
/// follow from elsewhere.
pub(crate) fn end(out: &mut [u8], start: usize, beyond: u64) {
    let mut length = (out.len() - start) as u64 + beyond;
    for (i, byte) in out[start - 5..start].iter_mut().enumerate() {
        #[allow(clippy::cast_possible_truncation)] // the low seven bits are meant
        let low = length as u8 & 0x7f;
        *byte = if i < 4 { low | 0x80 } else { low };
        length >>= 7;
    }
}

/// The header of a filler of `payload` bytes.
pub(crate) fn filler_header(payload: u64) -> [u8; 8] {
    let mut out = Vec::with_capacity(8);
    put_tag(&mut out, FILLER, LEN);
    put_padded(&mut out, payload, 5);
    let mut header = [0; 8];
    header.copy_from_slice(&out);
    header
}

/// Bytes of filler that bring `position` to `target mod align`, none or at least four.
pub(crate) fn filler_to(position: u64, align: u64) -> u64 {
    let gap = (align - position % align) % align;
    if gap == 0 || gap >= 4 {
        gap
    } else {
        gap + align
    }
}

/// A filler of `total` bytes, header included: none, or at least four.
pub(crate) fn put_filler(out: &mut Vec<u8>, total: u64) {
    if total == 0 {
        return;
    }
    put_tag(out, FILLER, LEN);
    let mut width = 1;
    while total - 3 - width > (1 << (7 * width)) - 1 {
        width += 1;
    }
    let payload = total - 3 - width;
    #[allow(clippy::cast_possible_truncation)] // at most a page
    let (width, payload) = (width as usize, payload as usize);
    put_padded(out, payload as u64, width);
    out.resize(out.len() + payload, 0);
}

/// Reads a varint; `None` if it does not end within `bytes` or is longer than ten bytes.
#[inline]
pub(crate) fn get_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    match bytes.first() {
        Some(byte @ 0..0x80) => Some((u64::from(*byte), 1)),
        _ => get_long_varint(bytes),
    }
}

fn get_long_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().take(10).enumerate() {
        let low = u64::from(byte & 0x7f);
        if i == 9 && low > 1 {
            return None;
        }
        value |= low << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(get_varint(&out), Some((value, out.len())));
        }
        assert_eq!(get_varint(&[0x80; 11]), None);
        assert_eq!(get_varint(&[0x80]), None);
        assert_eq!(get_varint(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
    }

    #[test]
    fn fillers_have_the_size_asked_for() {
        for total in (4..300).chain([4096, 20_000, 3_000_000]) {
            let mut out = Vec::new();
            put_filler(&mut out, total);
            assert_eq!(out.len() as u64, total);
            let (tag, n) = get_varint(&out).unwrap();
            assert_eq!(tag, u64::from(FILLER) << 3 | u64::from(LEN));
            let (payload, m) = get_varint(&out[n..]).unwrap();
            assert_eq!(payload + (n + m) as u64, total);
        }
        for position in 0..200 {
            let gap = filler_to(position, 64);
            assert_eq!((position + gap) % 64, 0);
            assert!(gap == 0 || gap >= 4);
        }
    }

    #[test]
    fn padded_lengths_are_varints() {
        let mut out = Vec::new();
        put_padded(&mut out, 5, 5);
        assert_eq!(out, [0x85, 0x80, 0x80, 0x80, 0]);
        assert_eq!(get_varint(&out), Some((5, 5)));
    }
}

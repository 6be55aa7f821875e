//! Bodies in chunks (RFC 9112 7.1): taken apart as strictly as they may be written, put together anew.
//!
//! Extensions and trailers are dropped, as the RFC allows: a client that wants trailers says so, and such a request is not plain.

/// Where in a chunked body it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a size line, of which so many bytes have come.
    Size { seen: usize, value: u64, digits: u8, extension: bool, cr: bool },
    /// So many bytes of a chunk are left.
    Data(u64),
    /// In the line end behind a chunk.
    DataEnd { cr: bool },
    /// In the trailers: bytes so far, bytes of this line.
    Trailers { seen: usize, line: usize, cr: bool },
    /// Behind all of it.
    End,
}

const SIZE: Place = Place::Size { seen: 0, value: 0, digits: 0, extension: false, cr: false };

/// Takes a chunked body apart.
#[derive(Debug)]
pub(super) struct Chunks(Place);

/// It is not chunked as it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Chunks {
    pub(super) fn new() -> Self {
        Self(SIZE)
    }

    /// Whether the last chunk and what belongs to it have come.
    pub(super) fn ended(&self) -> bool {
        self.0 == Place::End
    }

    /// Takes bytes, and gives the data among them to `data`, piece by piece. Returns how many it took: all, but for what is behind
    /// the end.
    pub(super) fn take(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < bytes.len() {
            match self.0 {
                Place::End => break,
                Place::Data(left) => {
                    let piece = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    data(&bytes[at..at + piece]);
                    at += piece;
                    let left = left - piece as u64;
                    self.0 = if left == 0 { Place::DataEnd { cr: false } } else { Place::Data(left) };
                }
                _ => {
                    self.0 = self.0.after(bytes[at])?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }
}

impl Place {
    fn after(self, byte: u8) -> Result<Self, Malformed> {
        match (self, byte) {
            (Self::Size { digits: 1.., value, cr: true, .. }, b'\n') => Ok(match value {
                0 => Self::Trailers { seen: 0, line: 0, cr: false },
                value => Self::Data(value),
            }),
            (Self::Size { cr: true, .. }, _) => Err(Malformed),
            (Self::Size { seen, value, digits, extension, .. }, b'\r') if digits > 0 => {
                Ok(Self::Size { seen, value, digits, extension, cr: true })
            }
            (Self::Size { seen, value, digits, extension: true, .. }, _)
                if seen < LONGEST_LINE && (byte >= b' ' || byte == b'\t') =>
            {
                Ok(Self::Size { seen: seen + 1, value, digits, extension: true, cr: false })
            }
            (Self::Size { seen, value, digits: digits @ 1.., .. }, b';' | b' ' | b'\t') => {
                Ok(Self::Size { seen, value, digits, extension: true, cr: false })
            }
            (Self::Size { seen, value, digits, extension: false, .. }, _) if digits < MOST_DIGITS => {
                let digit = (byte as char).to_digit(16).ok_or(Malformed)?;
                Ok(Self::Size {
                    seen,
                    value: value << 4 | u64::from(digit),
                    digits: digits + 1,
                    extension: false,
                    cr: false,
                })
            }
            (Self::DataEnd { cr: false }, b'\r') => Ok(Self::DataEnd { cr: true }),
            (Self::DataEnd { cr: true }, b'\n') => Ok(SIZE),
            (Self::Trailers { line: 0, cr: true, .. }, b'\n') => Ok(Self::End),
            (Self::Trailers { seen, cr: true, .. }, b'\n') => Ok(Self::Trailers { seen, line: 0, cr: false }),
            (Self::Trailers { cr: true, .. }, _) | (Self::Trailers { .. }, b'\n') => Err(Malformed),
            (Self::Trailers { seen, line, .. }, b'\r') => Ok(Self::Trailers { seen, line, cr: true }),
            (Self::Trailers { seen, line, .. }, _) if seen < MOST_TRAILERS => {
                Ok(Self::Trailers { seen: seen + 1, line: line + 1, cr: false })
            }
            _ => Err(Malformed),
        }
    }
}

/// Writes a chunk.
pub(super) fn add_chunk(out: &mut Vec<u8>, data: &[u8]) {
    // An empty one would be the end.
    if !data.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
        out.extend_from_slice(data);
        out.extend_from_slice(b"\r\n");
    }
}

/// The last chunk.
pub(super) const LAST: &[u8] = b"0\r\n\r\n";
/// Hexadecimal digits of a size that fits 64 bits.
const MOST_DIGITS: u8 = 16;
/// Bytes of a size line's extensions.
const LONGEST_LINE: usize = 4 * 1024;
/// Bytes of trailers.
const MOST_TRAILERS: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let (mut chunks, mut data, mut taken) = (Chunks::new(), Vec::new(), 0);
        for part in bytes.chunks(piece) {
            taken += chunks.take(part, |piece| data.extend_from_slice(piece))?;
        }
        Ok((data, taken, chunks.ended()))
    }

    #[test]
    fn bodies_are_taken_apart_to_their_end_and_not_further() {
        for (body, data) in [
            ("0\r\n\r\n", ""),
            ("5\r\nhello\r\n0\r\n\r\n", "hello"),
            ("5;a=\"b\"\r\nhello\r\n00A\r\n0123456789\r\n0;x\r\nx-sum: 1\r\ny: 2\r\n\r\n", "hello0123456789"),
        ] {
            for piece in 1..12 {
                let all = format!("{body}HTTP/1.1 200 OK");
                let (got, taken, ended) = decode(all.as_bytes(), piece).unwrap();
                assert_eq!((got.as_slice(), taken, ended), (data.as_bytes(), body.len(), true), "{body:?} in {piece}");
            }
        }
    }

    #[test]
    fn what_two_parsers_could_read_differently_is_malformed() {
        for body in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "+5\r\nhello\r\n",
            "0x5\r\nhello\r\n",
            "5\nhello\r\n",
            "5\rhello",
            "5\r\nhelloX\r\n",
            "5\r\nhello\n",
            "5;\n\r\n",
            "5;a\x00\r\n",
            "12345678901234567\r\n",
            "0\r\nx: 1\n\r\n",
            "0\r\n\n",
            " 5\r\nhello\r\n",
        ] {
            for piece in [1, 2, 100] {
                assert_eq!(decode(body.as_bytes(), piece).err(), Some(Malformed), "{body:?}");
            }
        }
        let long = format!("5;{}\r\n", "x".repeat(LONGEST_LINE + 1));
        assert!(decode(long.as_bytes(), 100).is_err());
        assert!(decode(format!("0\r\nx: {}\r\n\r\n", "x".repeat(MOST_TRAILERS)).as_bytes(), 100).is_err());
    }

    proptest! {
        #[test]
        fn what_is_put_together_is_taken_apart(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8), cut in 1usize..60) {
            let mut wire = Vec::new();
            pieces.iter().for_each(|piece| add_chunk(&mut wire, piece));
            wire.extend_from_slice(LAST);
            let length = wire.len();
            prop_assert_eq!(decode(&wire, cut), Ok((pieces.concat(), length, true)));
        }

        #[test]
        fn any_bytes_in_any_pieces_give_one_answer(bytes in prop::collection::vec(prop::sample::select(b"0159aF;\r\n x".to_vec()), 0..60), cut in 1usize..20) {
            let (whole, cut) = (decode(&bytes, 1_000), decode(&bytes, cut));
            prop_assert_eq!(whole.map(|(data, taken, end)| (data, taken.min(bytes.len()), end)), cut);
        }
    }
}

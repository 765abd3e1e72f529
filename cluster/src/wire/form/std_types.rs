//! Numbers, text, lists and options.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Form;
use crate::wire::codec::{Decode, DecodeError, Decoder, Encode, EncodeError, Encoder, Reader, Writer};

/// Memory that a list gets before any of its values is read, in bytes. A length that lies costs no more than this; a long
/// list grows as its values come.
const FIRST_BYTES: usize = 16 * 1024;

/// Types that are written as the encoding writes them.
macro_rules! as_encoded {
    ($($type:ty),+) => {$(
        impl Form for $type {
            #[inline]
            fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
                self.encode(to)
            }

            #[inline]
            fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
                Self::decode(from)
            }
        }
    )+};
}

as_encoded!(bool, u16, u32, u64, u128, i64, f32, f64, [u8; 16], [u8; 32]);

impl Form for u8 {
    #[inline]
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        self.encode(to)
    }

    #[inline]
    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Self::decode(from)
    }

    fn put_all<E: Encoder>(list: &[Self], to: &mut E) -> Result<(), EncodeError> {
        to.writer().write(list)
    }

    fn take_all<D: Decoder>(len: usize, from: &mut D) -> Result<Vec<Self>, DecodeError> {
        with_bytes(len, from, |bytes| Ok(bytes.to_vec()))
    }
}

impl<T: Form> Form for Vec<T> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        put_list(self, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        T::take_all(take_len(from)?, from)
    }
}

impl<T: Form> Form for Arc<[T]> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        put_list(self, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(Vec::take(from)?.into())
    }
}

impl<K: Form + Ord, V: Form> Form for BTreeMap<K, V> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        (self.len() as u64).put(to)?;
        self.iter().try_for_each(|(key, value)| {
            key.put(to)?;
            value.put(to)
        })
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        let len = take_len(from)?;
        // Kept sorted and unique, so that one map has one form.
        let pairs: Vec<(K, V)> = take_list(len, from)?;
        if !pairs.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Err(DecodeError::OtherString("the keys of a map are out of order".to_owned()));
        }
        Ok(pairs.into_iter().collect())
    }
}

impl Form for String {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        put_text(self, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        take_text(from, str::to_owned)
    }
}

impl Form for Cow<'static, str> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        put_text(self, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        String::take(from).map(Cow::Owned)
    }
}

impl Form for Arc<str> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        put_text(self, to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        take_text(from, |text| text.into())
    }
}

impl<T: Form> Form for Option<T> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        self.is_some().put(to)?;
        self.as_ref().map_or(Ok(()), |value| value.put(to))
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        bool::take(from)?.then(|| T::take(from)).transpose()
    }
}

impl<T: Form, F: Form> Form for Result<T, F> {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        self.is_ok().put(to)?;
        match self {
            Ok(value) => value.put(to),
            Err(error) => error.put(to),
        }
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok(if bool::take(from)? { Ok(T::take(from)?) } else { Err(F::take(from)?) })
    }
}

impl Form for () {
    fn put<E: Encoder>(&self, _to: &mut E) -> Result<(), EncodeError> {
        Ok(())
    }

    fn take<D: Decoder>(_from: &mut D) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl<A: Form, B: Form> Form for (A, B) {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        self.0.put(to)?;
        self.1.put(to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

/// Pointers are written as what they point to.
macro_rules! as_pointee {
    ($($pointer:ident),+) => {$(
        impl<T: Form> Form for $pointer<T> {
            fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
                T::put(self, to)
            }

            fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
                T::take(from).map(Self::new)
            }
        }
    )+};
}

as_pointee!(Box, Arc);

fn put_list<T: Form, E: Encoder>(list: &[T], to: &mut E) -> Result<(), EncodeError> {
    (list.len() as u64).put(to)?;
    T::put_all(list, to)
}

fn take_len<D: Decoder>(from: &mut D) -> Result<usize, DecodeError> {
    let len = u64::take(from)?;
    usize::try_from(len).map_err(|_| DecodeError::OutsideUsizeRange(len))
}

/// Reads `len` values one by one.
pub(super) fn take_list<T: Form, D: Decoder>(len: usize, from: &mut D) -> Result<Vec<T>, DecodeError> {
    const { assert!(size_of::<T>() > 0, "a list of nothings could claim any length at no cost") };
    // The whole list is charged to the limit first and each value again as it is read, so what was charged for it is
    // given back.
    from.claim_container_read::<T>(len)?;
    let mut list = Vec::with_capacity(first_capacity::<T>(len));
    for _ in 0..len {
        from.unclaim_bytes_read(size_of::<T>());
        list.push(T::take(from)?);
    }
    Ok(list)
}

/// Values that there is room for before the first is read, in a list that is said to have `len`.
const fn first_capacity<T>(len: usize) -> usize {
    let most = FIRST_BYTES / size_of::<T>();
    if len < most { len } else { most }
}

pub(super) fn put_text<E: Encoder>(text: &str, to: &mut E) -> Result<(), EncodeError> {
    put_list(text.as_bytes(), to)
}

/// Makes something of the text that follows, which is looked at where it is.
pub(super) fn take_text<T, D: Decoder>(from: &mut D, make: impl FnOnce(&str) -> T) -> Result<T, DecodeError> {
    let len = take_len(from)?;
    with_bytes(len, from, |bytes| {
        std::str::from_utf8(bytes).map(make).map_err(|inner| DecodeError::Utf8 { inner })
    })
}

/// Makes something of the next `len` bytes, which are looked at where they are.
fn with_bytes<T, D: Decoder>(
    len: usize,
    from: &mut D,
    make: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    from.claim_bytes_read(len)?;
    let bytes = from.reader().peek_read(len).ok_or(DecodeError::UnexpectedEnd { additional: len })?;
    let made = make(bytes)?;
    from.reader().consume(len);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_alone_reserves_little() {
        assert_eq!(first_capacity::<u32>(7), 7);
        assert_eq!(first_capacity::<u32>(usize::MAX) * 4, FIRST_BYTES);
        assert_eq!(first_capacity::<[u8; 1000]>(usize::MAX), 16);
    }
}

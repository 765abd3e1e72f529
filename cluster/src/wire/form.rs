//! The form of each type on the wire.
//!
//! Values are written from where they are: nothing is copied into a mirror first. A struct is its fields in the order
//! listed; an enum is a tag byte and the variant's fields. Lists are patterns and literals without `..`, so a field or
//! variant that is added to a core type is a compile error here. Tags and order are the format: a change of either needs a
//! new [`WIRE_VERSION`](super::WIRE_VERSION).

use super::codec::{DecodeError, Decoder, EncodeError, Encoder};

mod batch;
mod ids;
mod kv;
mod message;
mod node;
mod placement;
mod request;
mod std_types;
mod words;

/// A type that has a form on the wire. `take(put(x))` is `x`.
pub trait Form: Sized {
    /// Writes the value.
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError>;

    /// Reads one. Never panics, and asks for no more memory than what is read justifies.
    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError>;

    /// Writes the values of a list, without their number.
    fn put_all<E: Encoder>(list: &[Self], to: &mut E) -> Result<(), EncodeError> {
        list.iter().try_for_each(|item| item.put(to))
    }

    /// Reads `len` values.
    fn take_all<D: Decoder>(len: usize, from: &mut D) -> Result<Vec<Self>, DecodeError> {
        std_types::take_list(len, from)
    }
}

/// Gives a struct the form of its fields, in this order. Fields `not sent` get the value that is named.
macro_rules! form_struct {
    ($type:ty { $($field:ident),+ $(,)? } $(not sent { $($unsent:ident: $value:expr),+ })?) => {
        impl $crate::wire::form::Form for $type {
            fn put<E: $crate::wire::codec::Encoder>(
                &self,
                to: &mut E,
            ) -> Result<(), $crate::wire::codec::EncodeError> {
                let Self { $($field),+ $(, $($unsent: _),+)? } = self;
                $($crate::wire::form::Form::put($field, to)?;)+
                Ok(())
            }

            fn take<D: $crate::wire::codec::Decoder>(
                from: &mut D,
            ) -> Result<Self, $crate::wire::codec::DecodeError> {
                // The fields of a literal are evaluated in the order written.
                Ok(Self {
                    $($field: $crate::wire::form::Form::take(from)?,)+
                    $($($unsent: $value,)+)?
                })
            }
        }
    };
}

/// Gives an enum the form of a tag byte and the variant's fields, in this order.
macro_rules! form_enum {
    ($type:ty {
        $($tag:literal => $variant:ident $({ $($field:ident),+ $(,)? })? $(( $($item:ident),+ ))?),+ $(,)?
    }) => {
        impl $crate::wire::form::Form for $type {
            fn put<E: $crate::wire::codec::Encoder>(
                &self,
                to: &mut E,
            ) -> Result<(), $crate::wire::codec::EncodeError> {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(( $($item),+ ))? => {
                        $crate::wire::form::Form::put(&($tag as u8), to)?;
                        $($($crate::wire::form::Form::put($field, to)?;)+)?
                        $($($crate::wire::form::Form::put($item, to)?;)+)?
                    })+
                }
                Ok(())
            }

            fn take<D: $crate::wire::codec::Decoder>(
                from: &mut D,
            ) -> Result<Self, $crate::wire::codec::DecodeError> {
                Ok(match <u8 as $crate::wire::form::Form>::take(from)? {
                    $($tag => Self::$variant
                        $({ $($field: $crate::wire::form::Form::take(from)?),+ })?
                        $(( $({
                            let $item = $crate::wire::form::Form::take(from)?;
                            $item
                        }),+ ))?,)+
                    tag => return Err($crate::wire::form::no_such(stringify!($type), tag)),
                })
            }
        }
    };
}

use {form_enum, form_struct};

/// A tag that no variant has.
fn no_such(type_name: &str, tag: u8) -> DecodeError {
    DecodeError::OtherString(format!("no {type_name} has the tag {tag}"))
}

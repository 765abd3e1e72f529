//! Ids, times, roles.

use config::ids::{Attempt, ModelId, NodeId, PolicyName, RequestId, SessionId, TenantId, WorkerId};
use config::role::{Role, RoleSet};
use policies::kv::{Fingerprint, PageHash};
use policies::step::SeqKey;
use policies::time::Span;

use super::{Form, form_struct};
use crate::wire::codec::{DecodeError, Decoder, EncodeError, Encoder};

/// Newtypes are written as what they wrap.
macro_rules! as_wrapped {
    ($($type:ident),+) => {$(
        impl Form for $type {
            #[inline]
            fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
                self.0.put(to)
            }

            #[inline]
            fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
                Form::take(from).map(Self)
            }
        }
    )+};
}

as_wrapped!(NodeId, ModelId, SessionId, TenantId, PolicyName, Attempt, Span, PageHash, Fingerprint);
form_struct!(WorkerId { node, incarnation });
form_struct!(RequestId { gateway, number });
form_struct!(SeqKey { request, attempt, choice });

/// A bit a role.
impl Form for RoleSet {
    fn put<E: Encoder>(&self, to: &mut E) -> Result<(), EncodeError> {
        self.iter().fold(0, |bits, role| bits | bit(role)).put(to)
    }

    fn take<D: Decoder>(from: &mut D) -> Result<Self, DecodeError> {
        let bits = u8::take(from)?;
        let known = Role::ALL.into_iter().fold(0, |bits, role| bits | bit(role));
        let names: Vec<&str> =
            Role::ALL.into_iter().filter(|role| bits & bit(*role) != 0).map(Role::as_str).collect();
        // The empty set is none either: the text of no names does not parse.
        match names.join(",").parse() {
            Ok(roles) if bits & !known == 0 => Ok(roles),
            Ok(_) | Err(_) => {
                Err(DecodeError::OtherString(format!("{bits:#010b} stands for no set of roles")))
            }
        }
    }
}

const fn bit(role: Role) -> u8 {
    match role {
        Role::Gateway => 1,
        Role::Controller => 2,
        Role::Worker => 4,
        Role::Pool => 8,
    }
}

//! What a node says about itself.

use policies::membership::{Member, Peer};

use super::form_struct;
use crate::wire::ad::{Beat, ModelAd, WorkerAd};

form_struct!(Beat { member, worker, peers, sessions });
form_struct!(Member { id, incarnation, address, roles, ready, draining, http });
form_struct!(Peer { id, incarnation, address });
form_struct!(WorkerAd { info, draining, load, models });
form_struct!(ModelAd { name, descriptor, bytes });

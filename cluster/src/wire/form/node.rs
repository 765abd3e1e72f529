//! What a node says about itself.

use policies::membership::{Member, Peer};

use super::form_struct;
use crate::wire::ad::{Beat, ModelAd, PoolAd, PoolLoad, WorkerAd};

form_struct!(Beat { member, worker, pool, peers, sessions });
form_struct!(Member { id, incarnation, address, roles, ready, draining, http });
form_struct!(Peer { id, incarnation, address });
form_struct!(WorkerAd { info, draining, load, models });
form_struct!(PoolAd { info, load });
form_struct!(PoolLoad { pages, ram, ram_capacity, disk, disk_capacity });
form_struct!(ModelAd { name, descriptor, bytes });

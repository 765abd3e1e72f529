use super::*;

mod cases;
mod disk;
mod limits;
mod random;
mod rig;

use rig::{Rig, chain, key, limits, owner};

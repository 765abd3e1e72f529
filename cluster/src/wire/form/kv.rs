//! What a worker tells about its pages.

use policies::kv::events::KvEvent;

use super::form_enum;

form_enum!(KvEvent { 0 => Stored { parent, pages, tokens }, 1 => Removed { pages }, 2 => Cleared });

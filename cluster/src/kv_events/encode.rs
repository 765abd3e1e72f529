//! Batches of events in MessagePack, as vLLM writes them.
//!
//! A batch is `[timestamp, [event, …], data_parallel_rank]`. An event is an array that begins with its name, or a map
//! that has it under `type`, with these fields in this order:
//!
//! | event | fields |
//! |---|---|
//! | `BlockStored` | `block_hashes`, `parent_block_hash`, `token_ids`, `block_size`, `lora_id`, `medium`, `lora_name` |
//! | `BlockRemoved` | `block_hashes`, `medium` |
//! | `AllBlocksCleared` | |

use config::KvEventsEncoding;
use policies::kv::PageHash;
use policies::kv::events::KvEvent;
use rmp::encode::{self as pack, ByteBuf};

/// The tier that all our events are about: memory that the engine computes from. It is called so on a CPU too, since a
/// router takes any other name for a slower tier.
const MEDIUM: &str = "GPU";
/// A worker of ours is one replica.
const DATA_PARALLEL_RANK: u64 = 0;
const MEMORY: &str = "writing to memory cannot fail";

/// What stands for a page in events: the last 8 bytes of its hash, as an unsigned big-endian number (vLLM shortens its
/// own hashes likewise). It is the same on all workers with the same model and settings.
#[must_use]
pub fn block_hash(page: &PageHash) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = page.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The payload of a batch. `seconds` is the time since the Unix epoch; a page holds `page_tokens` tokens.
#[must_use]
pub fn encode(seconds: f64, page_tokens: u32, events: &[KvEvent], encoding: KvEventsEncoding) -> Vec<u8> {
    let mut out = Out { bytes: ByteBuf::new(), named: encoding == KvEventsEncoding::Map };
    out.array(3);
    pack::write_f64(&mut out.bytes, seconds).expect(MEMORY);
    out.array(events.len());
    for event in events {
        out.event(page_tokens, event);
    }
    out.uint(DATA_PARALLEL_RANK);
    out.bytes.into_vec()
}

struct Out {
    bytes: ByteBuf,
    /// Whether fields are written with their names.
    named: bool,
}

impl Out {
    fn event(&mut self, page_tokens: u32, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, pages, tokens } => {
                self.begin("BlockStored", 7);
                self.field("block_hashes").hashes(pages);
                self.field("parent_block_hash");
                match parent {
                    Some(parent) => self.uint(block_hash(parent)),
                    None => self.nil(),
                }
                self.field("token_ids").array(tokens.len());
                for token in tokens {
                    self.uint(u64::from(*token));
                }
                self.field("block_size").uint(u64::from(page_tokens));
                self.field("lora_id").nil();
                self.field("medium").text(MEDIUM);
                self.field("lora_name").nil();
            }
            KvEvent::Removed { pages } => {
                self.begin("BlockRemoved", 2);
                self.field("block_hashes").hashes(pages);
                self.field("medium").text(MEDIUM);
            }
            KvEvent::Cleared => self.begin("AllBlocksCleared", 0),
        }
    }

    /// An event of that name with so many fields.
    fn begin(&mut self, name: &str, fields: u32) {
        if self.named {
            pack::write_map_len(&mut self.bytes, fields + 1).expect(MEMORY);
        } else {
            pack::write_array_len(&mut self.bytes, fields + 1).expect(MEMORY);
        }
        self.field("type").text(name);
    }

    /// What comes next is the value of this field.
    fn field(&mut self, name: &str) -> &mut Self {
        if self.named {
            self.text(name);
        }
        self
    }

    fn hashes(&mut self, pages: &[PageHash]) {
        self.array(pages.len());
        for page in pages {
            self.uint(block_hash(page));
        }
    }

    fn array(&mut self, items: usize) {
        let items = u32::try_from(items).expect("a worker has fewer than 4 thousand million tokens");
        pack::write_array_len(&mut self.bytes, items).expect(MEMORY);
    }

    fn uint(&mut self, n: u64) {
        pack::write_uint(&mut self.bytes, n).expect(MEMORY);
    }

    fn text(&mut self, text: &str) {
        pack::write_str(&mut self.bytes, text).expect(MEMORY);
    }

    fn nil(&mut self) {
        pack::write_nil(&mut self.bytes).expect(MEMORY);
    }
}

#[cfg(test)]
mod tests;

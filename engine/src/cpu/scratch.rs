//! Memory that a thread keeps between tasks.
#![expect(unsafe_code, reason = "views bytes as f32")]

use std::cell::Cell;
use std::thread::LocalKey;

use super::packed::Buffer;

/// Where a thread keeps a scratch buffer.
pub(super) type Slot = Cell<Option<Buffer>>;

/// A thread's scratch memory of some number of values, aligned to a cache line, with arbitrary contents; goes back to
/// its slot when dropped.
pub(super) struct Scratch {
    slot: &'static LocalKey<Slot>,
    buffer: Option<Buffer>,
    len: usize,
}

impl Scratch {
    pub(super) fn take(slot: &'static LocalKey<Slot>, len: usize) -> Self {
        let bytes = len * size_of::<f32>();
        let buffer = match slot.take() {
            Some(buffer) if buffer.as_slice().len() >= bytes => buffer,
            _ => Buffer::zeroed(bytes),
        };
        Scratch { slot, buffer: Some(buffer), len }
    }

    pub(super) fn values(&mut self) -> &mut [f32] {
        let buffer = self.buffer.as_mut().expect("present until dropped");
        // SAFETY: any bits are an f32.
        let (_, values, _) = unsafe { buffer.as_mut_slice().align_to_mut::<f32>() };
        &mut values[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.slot.set(self.buffer.take());
    }
}

//! Memory for kernels: aligned, zeroed lazily, and divisible among threads.
#![expect(
    unsafe_code,
    reason = "allocates with an alignment, and lends disjoint parts of a slice to several threads"
)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A cache line, and the widest SIMD register.
const ALIGN: usize = 64;

/// Zeroed bytes that begin at a cache line. Large ones come as untouched pages, which cost no memory until written.
pub(in super::super) struct Buffer {
    /// What the allocator gave: `len + ALIGN` bytes.
    raw: NonNull<u8>,
    layout: Layout,
    start: usize,
    len: usize,
}

// SAFETY: the buffer owns its memory; access follows the usual borrow rules of `&self` and `&mut self`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// # Panics
    /// Aborts the process if there is no memory, as `Vec` does.
    pub(in super::super) fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Layout::new::<[u8; ALIGN]>()))
    }

    /// `None` if the memory cannot be had.
    pub(in super::super) fn try_zeroed(len: usize) -> Option<Self> {
        // Alignment by hand: the system allocator clears over-aligned memory by writing to it, and that would make
        // every untouched page resident.
        let layout = Layout::from_size_align(len.checked_add(ALIGN)?, align_of::<u64>()).ok()?;
        // SAFETY: the layout's size is not 0.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let start = raw.align_offset(ALIGN);
        Some(Buffer { raw, layout, start, len })
    }

    pub(in super::super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start < ALIGN`, so `len` initialised bytes follow.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr().add(self.start), self.len) }
    }

    pub(in super::super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_ptr().add(self.start), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) };
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A mutable slice that several threads may take disjoint parts of.
#[derive(Debug)]
pub(in super::super) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: only disjoint parts are handed out (the contract of `part`), so sharing it is sharing nothing.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(in super::super) fn new(slice: &'a mut [T]) -> Self {
        SharedMut { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// `len` elements from `start`.
    ///
    /// # Safety
    /// No other live part overlaps it.
    #[expect(clippy::mut_from_ref, reason = "the point of the type; see the contract")]
    pub(in super::super) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: in bounds, and exclusive by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

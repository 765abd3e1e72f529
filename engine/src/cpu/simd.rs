//! 16 virtual lanes on what the machine has.

/// Which implementation of the lanes runs. All agree bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SimdLevel {
    Portable,
    Avx2,
    Avx512,
}

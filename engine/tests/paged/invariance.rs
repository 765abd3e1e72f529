//! A token's result depends on its own sequence alone, bit for bit.

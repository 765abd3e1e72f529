//! Clusters of real processes: how nodes join, whom they turn away, what is lost and found again.

mod join;

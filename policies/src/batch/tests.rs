//! The scheduler against a tiny model whose tokens depend on every byte of KV that it reads.

mod model;

mod driver;

mod replay;

mod random;

mod cache;

mod choices;

mod credit;

mod fairness;

mod keep;

mod limits;

mod order;

mod pressure;

mod removal;

mod transfer;

//! What those who use a pool are told. Told on the pool's task: a sink only passes on.

use cluster::kv::PageBuf;
use policies::kv::Fingerprint;
use policies::kv::events::KvEvent;
use policies::pool::{Announcement, PutEnd};

/// Told to a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutNews {
    /// The page is kept: there is room for another one.
    Stored {
        /// Its index in the run.
        index: usize,
    },
    /// It is over.
    Ended {
        /// Pages of the run, from the first, that were here when it ended.
        pages: usize,
        /// How.
        why: PutEnd,
    },
}

/// Told to a reader.
#[derive(Clone, Debug)]
pub enum ReadNews {
    /// The next page, in order.
    Page {
        /// Its index in the run.
        index: usize,
        /// Its content.
        page: PageBuf,
    },
    /// The run has only so many pages now: one was lost.
    Cut {
        /// Pages from the first of the run.
        pages: usize,
    },
    /// Nothing more comes.
    Ended,
}

/// Told to who wants to know what is here.
#[derive(Clone, Debug)]
pub enum PoolNews {
    /// Everything.
    All(Announcement),
    /// What has changed since.
    Changes {
        /// Of the announcement that this counts from.
        epoch: u64,
        /// In order.
        events: Vec<(Fingerprint, KvEvent)>,
    },
}

macro_rules! sink {
    ($(#[$doc:meta])* $name:ident of $news:ident) => {
        $(#[$doc])*
        pub struct $name(pub Box<dyn Fn($news) + Send>);

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

sink! {
    /// Takes what a writer is told.
    PutSink of PutNews
}
sink! {
    /// Takes what a reader is told.
    ReadSink of ReadNews
}
sink! {
    /// Takes what is told about all contents.
    NewsSink of PoolNews
}

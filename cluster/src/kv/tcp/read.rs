//! Reading messages off a connection, piece by piece: what has been read is kept when the reading is dropped halfway.

use std::io;
use std::time::Duration;

use rkyv::util::AlignedVec;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::Reader;
use crate::kv::error::KvError;
use crate::kv::frame::{PREFIX_BYTES, Prefix};
use crate::kv::header::{ArchivedKvHeader, CheckedHeader, PageList};
use crate::kv::link::Inbound;
use crate::kv::page::{PageBuf, PageFill, Reservation};
use crate::kv::shape::Settings;

/// Bytes of a header that are allocated before they have come.
const HEADER_STEP: usize = 64 * 1024;

/// Where in a message the connection is.
pub(super) struct Reading {
    prefix: [u8; PREFIX_BYTES],
    stage: Stage,
}

enum Stage {
    /// So many bytes of the prefix are there.
    Prefix { got: usize },
    /// So many bytes of the header are there.
    Header { prefix: Prefix, bytes: AlignedVec, got: usize },
    /// The bodies follow as soon as there is room for them.
    Room { header: CheckedHeader, pages: usize },
    /// Bodies, and so many bytes of the one that comes.
    Bodies {
        header: CheckedHeader,
        room: Reservation,
        whole: Vec<PageBuf>,
        /// Checksums of what is whole, as it came.
        sums: Vec<u64>,
        part: Option<(PageFill, usize)>,
    },
}

impl Reading {
    pub(super) fn new() -> Self {
        Self { prefix: [0; PREFIX_BYTES], stage: Stage::Prefix { got: 0 } }
    }

    /// The next message, checked. None where the connection was closed before it began.
    ///
    /// After an error there is nothing to go on with: the caller closes the connection.
    pub(super) async fn next(
        &mut self,
        reader: &mut Reader,
        settings: &Settings,
    ) -> Result<Option<Inbound>, KvError> {
        loop {
            match &mut self.stage {
                Stage::Prefix { got } => {
                    while *got < PREFIX_BYTES {
                        // Between messages there may be silence.
                        let limit = (*got > 0).then_some(settings.stall);
                        match read(reader, &mut self.prefix[*got..], limit).await? {
                            0 if *got == 0 => return Ok(None),
                            0 => return Err(KvError::cut("prefix")),
                            n => *got += n,
                        }
                    }
                    let prefix = Prefix::decode(&self.prefix, settings.layout())?;
                    self.stage = Stage::Header { prefix, bytes: AlignedVec::new(), got: 0 };
                }
                Stage::Header { prefix, bytes, got } => {
                    while *got < prefix.header_bytes {
                        if *got == bytes.len() {
                            bytes.resize(prefix.header_bytes.min(*got + HEADER_STEP), 0);
                        }
                        match read(reader, &mut bytes[*got..], Some(settings.stall)).await? {
                            0 => return Err(KvError::cut("header")),
                            n => *got += n,
                        }
                    }
                    Prefix::verify(&self.prefix, bytes)?;
                    let header = CheckedHeader::check(std::mem::take(bytes))?;
                    if header.kind() != prefix.kind {
                        return Err(KvError::malformed("kind", "is not that of the header"));
                    }
                    if let ArchivedKvHeader::Ask { layout, .. } = header.read() {
                        settings.agree(layout.into())?;
                    }
                    header.check_pages(prefix.pages, true, settings.layout())?;
                    self.stage = Stage::Room { header, pages: prefix.pages };
                }
                Stage::Room { header, pages: 0 } => {
                    let header = header.clone();
                    self.stage = Stage::Prefix { got: 0 };
                    return Ok(Some(Inbound::new(header, Vec::new())));
                }
                Stage::Room { header, pages } => {
                    // A prefix with pages is not taken before there is a layout.
                    let known = settings.pages().ok_or_else(KvError::unasked)?;
                    let room = known.pool.reserve(*pages).await;
                    self.stage = Stage::Bodies {
                        header: header.clone(),
                        room,
                        whole: Vec::with_capacity(*pages),
                        sums: Vec::with_capacity(*pages),
                        part: None,
                    };
                }
                Stage::Bodies { header, room, whole, sums, part } => {
                    if part.is_none() {
                        *part = room.take().map(|page| (page, 0));
                    }
                    let Some((page, got)) = part else {
                        verify(header, sums)?;
                        let message = Inbound::new(header.clone(), std::mem::take(whole));
                        self.stage = Stage::Prefix { got: 0 };
                        return Ok(Some(message));
                    };
                    while *got < page.len() {
                        match read(reader, &mut page[*got..], Some(settings.stall)).await? {
                            0 => return Err(KvError::cut("pages")),
                            n => *got += n,
                        }
                    }
                    // Here and now: the page has just passed through the cache, and one takes some 20 µs.
                    sums.push(xxh3_64(page));
                    whole.extend(part.take().map(|(page, _)| page.freeze()));
                }
            }
        }
    }
}

/// Whether pages with these checksums are what was sent.
fn verify(header: &CheckedHeader, sums: &[u64]) -> Result<(), KvError> {
    let Some(PageList { first, checksums, .. }) = header.read().pages() else {
        return Err(KvError::malformed("pages", "follow a message that has none"));
    };
    match checksums.iter().zip(sums).position(|(sent, is)| sent.to_native() != *is) {
        Some(at) => {
            Err(KvError::Checksum { page: first.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)) })
        }
        None => Ok(()),
    }
}

async fn read(reader: &mut Reader, to: &mut [u8], limit: Option<Duration>) -> Result<usize, KvError> {
    let read = match limit {
        None => reader.read(to).await,
        Some(limit) => timeout(limit, reader.read(to))
            .await
            .map_err(|_| KvError::Stalled { what: "sent", after: limit })?,
    };
    match read {
        // TLS: the connection ended without a farewell. What is said on a link says itself where it ends.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => Ok(read?),
    }
}

//! Frames of the handshake: a length of four bytes, big-endian, and that many bytes; under one time limit.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout};

use super::Failed;

/// The longest frame in bytes. What begins with a larger number is no node of ours (`GET `, read as a length, is one).
pub(super) const LONGEST: usize = 64 * 1024;

/// Bytes of a frame that are allocated before they have come.
const FIRST_READ: usize = 4 * 1024;

#[derive(Debug)]
pub(super) enum FrameError {
    /// Not a frame of ours; says what it looks like.
    Foreign(&'static str),
    /// The connection broke.
    Io(String),
}

impl From<io::Error> for FrameError {
    fn from(e: io::Error) -> Self {
        Self::Io(match e.kind() {
            io::ErrorKind::UnexpectedEof => "the other end closed the connection".to_owned(),
            _ => e.to_string(),
        })
    }
}

pub(super) fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("frames are built from a few short fields");
    [&length.to_be_bytes(), body].concat()
}

pub(super) async fn write<S: AsyncWrite + Unpin>(stream: &mut S, body: &[u8]) -> Result<(), FrameError> {
    stream.write_all(&framed(body)).await?;
    Ok(stream.flush().await?)
}

pub(super) async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, FrameError> {
    let mut head = [0u8; 4];
    stream.read_exact(&mut head).await?;
    let length = u32::from_be_bytes(head) as usize;
    if length == 0 || length > LONGEST {
        return Err(FrameError::Foreign(looks_like(head)));
    }
    let mut body = Vec::with_capacity(length.min(FIRST_READ));
    stream.take(length as u64).read_to_end(&mut body).await?;
    if body.len() < length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    Ok(body)
}

fn looks_like(head: [u8; 4]) -> &'static str {
    match &head {
        // A TLS record: alert or handshake, version 3.x.
        [0x15 | 0x16, 3, ..] => "one end speaks TLS and the other does not; configure it on both",
        b"HTTP" | b"GET " | b"POST" | b"HEAD" | b"PUT " | b"PRI " | b"OPTI" => "it speaks HTTP",
        _ => "it speaks another protocol",
    }
}

/// Time that is left for frames.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Duration,
}

impl Budget {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { left: limit }
    }

    /// Does `work` in the time that is left and `extra`, which is free.
    ///
    /// # Errors
    /// The time is up, or the work fails.
    pub(crate) async fn run<T, E: Into<Failed>>(
        &mut self,
        extra: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failed> {
        let begun = Instant::now();
        let done = timeout(self.left + extra, work).await;
        self.left = self.left.saturating_sub(begun.elapsed().saturating_sub(extra));
        match done {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(Failed::Silent),
        }
    }
}

impl From<FrameError> for Failed {
    fn from(e: FrameError) -> Self {
        match e {
            FrameError::Foreign(looks) => Self::Refused {
                refusal: super::Refusal::NotACluster(looks.to_owned()),
                by_peer: false,
                name: None,
            },
            FrameError::Io(why) => Self::Broken(why),
        }
    }
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Self {
        FrameError::from(e).into()
    }
}

//! Reading bodies within bounds of size and time.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::StreamExt as _;

use crate::limits::{BODY_TIMEOUT, DISCARD_TIMEOUT, MAX_BATCH_BODY_BYTES};
use crate::problem::{Code, Problem};

/// A request's body until somebody reads it.
#[derive(Clone)]
pub(super) struct Upload(Arc<Mutex<Option<Body>>>);

impl Upload {
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    fn take(&self) -> Option<Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads past a body that nobody wanted. A connection that is closed over unread bytes is reset, and the reset may
    /// reach the client before the answer that says why.
    pub(super) async fn discard(&self, headers: &HeaderMap) {
        // Who asked before sending is told not to.
        let waits = headers.contains_key(header::EXPECT);
        let Some(body) = self.take().filter(|_| !waits) else { return };
        let mut left = MAX_BATCH_BODY_BYTES;
        let mut data = body.into_data_stream();
        let read = async {
            while let Some(Ok(chunk)) = data.next().await {
                left = left.saturating_sub(chunk.len());
                if left == 0 {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(DISCARD_TIMEOUT, read).await);
    }
}

/// Reads a body of at most `limit` bytes; `code` is what a longer one is called.
///
/// # Errors
/// When it is longer (without reading on), slow, or breaks off.
pub(super) async fn read(body: Upload, headers: &HeaderMap, limit: usize, code: Code) -> Result<Bytes, Problem> {
    let too_long = || {
        let detail = format!("the body has more than {limit} bytes, which is the limit");
        Problem::new(code, detail).with_limit(limit)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
    let body = body.take().unwrap_or_default();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => Err(too_long()),
        Ok(Err(_)) => Err(Problem::new(Code::BadRequest, "the body broke off")),
        Err(_) => Err(Problem::new(Code::BodyTimeout, format!("the body took longer than {} s", BODY_TIMEOUT.as_secs()))),
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit") {
            return true;
        }
        cause = error.source();
    }
    false
}

//! Reading bodies within bounds of size and time.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, header};
use bytes::Bytes;

use crate::limits::BODY_TIMEOUT;
use crate::problem::{Code, Problem};

/// Reads a body of at most `limit` bytes; `code` is what a longer one is called.
///
/// # Errors
/// When it is longer (without reading on), slow, or breaks off.
pub(super) async fn read(body: Body, headers: &HeaderMap, limit: usize, code: Code) -> Result<Bytes, Problem> {
    let too_long = || {
        let detail = format!("the body has more than {limit} bytes, which is the limit");
        Problem::new(code, detail).with_limit(limit)
    };
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_long());
    }
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

//! `batch`

use std::fs::File;
use std::io::{Read, Write as _};

use ureq::http::Method;

use super::args::BatchArgs;
use super::client::{DatabaseClient, read_body};
use super::failure::{Exit, Failure};
use super::key::{durability, joined};
use crate::limits::MAX_BATCH_BODY_BYTES;

/// `kvdb batch`
pub(super) fn batch(args: &BatchArgs) -> Result<(), Failure> {
    let input: Box<dyn Read> = if args.file.as_os_str() == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        let opened = File::open(&args.file);
        Box::new(opened.map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", args.file.display())))?)
    };
    let mut ops = Vec::new();
    let read = input.take(MAX_BATCH_BODY_BYTES as u64 + 1).read_to_end(&mut ops);
    read.map_err(|error| Failure::bad_input(format!("cannot read the ops: {error}")))?;
    if ops.len() > MAX_BATCH_BODY_BYTES {
        return Err(Failure::bad_input(format!("the ops have more than {MAX_BATCH_BODY_BYTES} bytes, which is the limit")));
    }
    // Named even if nobody asked for it, so that a lost answer can be asked for again.
    let id = args.request.request.clone().unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()));
    let mut query = durability(&args.write);
    query.push(format!("request={id}"));
    let client = DatabaseClient::new(&args.client)?;
    let answer = client
        .send(Method::POST, &format!("batch{}", joined(&query)), "application/x-ndjson", &ops)
        .and_then(|response| read_body(response, false))
        .map_err(|failure| match failure.exit {
            Exit::Unknown if failure.code.is_none() => failure.and(&format!("; the same again with --request {id} writes once")),
            _ => failure,
        })?;
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(&answer).and_then(|()| stdout.write_all(b"\n"));
    written.and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
}

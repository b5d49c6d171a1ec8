//! `watch`: server-sent events as lines, over broken connections.

use std::io::{IsTerminal as _, Read, Write as _};

use kvdb::Prefix;
use serde_json::Value;
use ureq::http::Method;

use super::args::WatchArgs;
use super::client::{DatabaseClient, Lines, encode};
use super::failure::Failure;
use crate::limits::WATCH_PAUSE;
use crate::problem::{Code, Problem};

/// One event as it was sent.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sent {
    kind: String,
    data: String,
}

/// Reads server-sent events, and keeps the last id.
struct Events<R> {
    lines: Lines<R>,
    /// Where to resume; empty when nowhere.
    id: String,
}

impl<R: Read> Events<R> {
    /// The next event that has data; `None` when the connection has ended between two.
    fn next(&mut self) -> std::io::Result<Option<Sent>> {
        let mut event = Sent::default();
        // Counts once its event is whole.
        let mut id: Option<String> = None;
        while let Some(line) = self.lines.next()? {
            let line = String::from_utf8_lossy(line);
            let line = line.strip_suffix('\r').unwrap_or(&line);
            if line.is_empty() {
                if let Some(id) = id.take() {
                    self.id = id;
                }
                if !event.data.is_empty() {
                    return Ok(Some(event));
                }
                event = Sent::default();
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event.kind),
                "data" => event.data.push_str(value),
                "id" => id = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(None)
    }
}

/// Why one connection's watch is over.
enum Over {
    /// As many lines as were asked for.
    Enough,
    /// To go on from the last id.
    BrokeOff(String),
    /// To list again.
    Reset(String),
}

/// `kvdb watch`
pub(super) fn watch(args: &WatchArgs) -> Result<(), Failure> {
    let prefix = Prefix::parse(&args.prefix).map_err(Failure::bad_input)?;
    let client = DatabaseClient::watching(&args.client)?;
    let mut output = Output { json: args.json, left: args.limit.unwrap_or(u64::MAX) };
    let mut from = match &args.from {
        Some(token) => encode(token),
        None => if args.list { "list" } else { "now" }.to_owned(),
    };
    let mut connected = false;
    loop {
        let values = if args.json { "" } else { "&keys_only=true" };
        let query = format!("watch?prefix={}&from={from}{values}", encode(prefix.as_str()));
        let over = match client.send(Method::GET, &query, "", &[]) {
            Ok(response) => {
                connected = true;
                let mut events = Events { lines: Lines::new(response.into_body().into_reader()), id: String::new() };
                let over = output.follow(&mut events)?;
                if !events.id.is_empty() {
                    from = events.id;
                } else if matches!(over, Over::BrokeOff(_)) {
                    // Broken off in the middle of a listing, or nowhere to resume from.
                    "list".clone_into(&mut from);
                    output.reset()?;
                }
                over
            }
            Err(failure) if failure.code == Some(Code::TooOld) => Over::Reset(failure.message),
            // Whoever has never reached the node had better be told.
            Err(failure) if !connected || failure.is_final() => return Err(failure),
            Err(failure) => Over::BrokeOff(failure.message),
        };
        match over {
            Over::Enough => return Ok(()),
            Over::BrokeOff(why) => {
                eprintln!("kvdb: {why}; going on from {from}");
                std::thread::sleep(WATCH_PAUSE);
            }
            Over::Reset(why) => {
                eprintln!("kvdb: {why}; listing again");
                "list".clone_into(&mut from);
                output.reset()?;
            }
        }
        if output.left == 0 {
            return Ok(());
        }
    }
}

struct Output {
    json: bool,
    /// Lines that are still wanted.
    left: u64,
}

impl Output {
    fn follow<R: Read>(&mut self, events: &mut Events<R>) -> Result<Over, Failure> {
        loop {
            let event = match events.next() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(Over::BrokeOff("the watch broke off".to_owned())),
                Err(error) => return Ok(Over::BrokeOff(format!("the watch broke off: {error}"))),
            };
            let malformed = |_| Failure::retry("this is no kvdb node: its event is not JSON");
            let data: Value = serde_json::from_str(&event.data).map_err(malformed)?;
            match event.kind.as_str() {
                "reset" => return Ok(Over::Reset("changes were missed".to_owned())),
                "end" => return Ok(Over::BrokeOff("the node has ended the watch".to_owned())),
                "error" => {
                    let problem = data.get("error").cloned().and_then(|error| serde_json::from_value::<Problem>(error).ok());
                    return Ok(Over::BrokeOff(problem.map_or_else(|| event.data.clone(), |problem| problem.detail)));
                }
                kind => self.line(kind, &events.id, &data)?,
            }
            if self.left == 0 {
                return Ok(Over::Enough);
            }
        }
    }

    fn reset(&mut self) -> Result<(), Failure> {
        self.line("reset", "", &Value::Null)
    }

    fn line(&mut self, kind: &str, token: &str, data: &Value) -> Result<(), Failure> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let mut stdout = std::io::stdout().lock();
        let text = if self.json {
            let mut record = serde_json::json!({ "event": kind, "token": (!token.is_empty()).then_some(token) });
            if let (Some(record), Some(data)) = (record.as_object_mut(), data.as_object()) {
                record.extend(data.clone());
            }
            record.to_string()
        } else {
            let field = |name: &str| data.get(name).and_then(Value::as_str).map(|text| format!(" {text}")).unwrap_or_default();
            let line = format!("{kind}{}{}", field("key"), field("dot"));
            // A terminal must not be driven by what is in a key.
            if stdout.is_terminal() { line.replace(|c: char| c.is_control(), "\u{fffd}") } else { line }
        };
        writeln!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(|error| Failure::output(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_as_the_standard_says() {
        let text = ": alive\nid: 1-a\n\nevent: put\r\ndata: {\"key\":\"/a\"}\r\nid: 2-b\r\n\r\nevent:delete\ndata:x\n\nid: 9-z\nevent: put\ndata: cut";
        let mut events = Events { lines: Lines::new(text.as_bytes()), id: String::new() };
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.kind.as_str(), event.data.as_str(), events.id.as_str()), ("put", "{\"key\":\"/a\"}", "2-b"));
        let event = events.next().unwrap().unwrap();
        assert_eq!((event.kind.as_str(), event.data.as_str(), events.id.as_str()), ("delete", "x", "2-b"));
        assert_eq!(events.next().unwrap(), None);
        assert_eq!(events.id, "2-b", "half an event moves nothing");
    }
}

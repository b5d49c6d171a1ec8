//! `ls`, `conflicts`

use std::io::{BufWriter, IsTerminal as _, Write as _};

use kvdb::{After, Prefix};

use super::args::{ConflictsArgs, LsArgs};
use super::client::{DatabaseClient, Next, encode};
use super::failure::Failure;

/// `kvdb ls`
pub(super) fn ls(args: &LsArgs) -> Result<(), Failure> {
    let query = query(args)?;
    show(&DatabaseClient::new(&args.client)?, &format!("list?{query}"), args.json, args.null)
}

/// `kvdb conflicts`
pub(super) fn conflicts(args: &ConflictsArgs) -> Result<(), Failure> {
    let mut query = place(&args.prefix, args.after.as_deref(), args.limit)?;
    if !args.json {
        query.push("keys_only=true".to_owned());
    }
    show(&DatabaseClient::new(&args.client)?, &format!("conflicts?{}", query.join("&")), args.json, false)
}

/// Writes a listing to standard output.
fn show(client: &DatabaseClient, below: &str, json: bool, null: bool) -> Result<(), Failure> {
    let mut records = client.records(below)?;
    let stdout = std::io::stdout();
    // A terminal must not be driven by what is in a key; a pipe gets the key byte by byte.
    let escape = stdout.is_terminal() && !null;
    let mut output = BufWriter::new(stdout.lock());
    let end = loop {
        let (record, line) = match records.next() {
            Ok(Next::Record(record, line)) => (record, line),
            Ok(Next::End(end)) => break end,
            Err(failure) => {
                drop(output.flush());
                return Err(failure);
            }
        };
        let written = if json {
            output.write_all(line).and_then(|()| output.write_all(b"\n"))
        } else {
            let name = record.key.or(record.prefix.map(|prefix| prefix + "/")).unwrap_or_default();
            let name = if escape { name.replace(|c: char| c.is_control(), "\u{fffd}") } else { name };
            output.write_all(name.as_bytes()).and_then(|()| output.write_all(if null { b"\0" } else { b"\n" }))
        };
        written.map_err(|error| Failure::output(&error))?;
    };
    output.flush().map_err(|error| Failure::output(&error))?;
    if let Some(next) = end.next {
        eprintln!("kvdb: there is more: --after {next:?}");
    }
    Ok(())
}

/// Where a listing begins and how long it is.
fn place(prefix: &str, after: Option<&str>, limit: Option<u32>) -> Result<Vec<String>, Failure> {
    let prefix = Prefix::parse(prefix).map_err(Failure::bad_input)?;
    let mut query = vec![format!("prefix={}", encode(prefix.as_str()))];
    if let Some(after) = after {
        let after: After = after.parse().map_err(|error| Failure::bad_input(format!("--after: {error}")))?;
        query.push(format!("after={}", encode(&after.to_string())));
    }
    query.extend(limit.map(|limit| format!("limit={limit}")));
    Ok(query)
}

fn query(args: &LsArgs) -> Result<String, Failure> {
    let mut query = place(&args.prefix, args.after.as_deref(), args.limit)?;
    if args.delimiter {
        query.push("delimiter=%2F".to_owned());
    }
    query.extend(args.regex.iter().map(|pattern| format!("regex={}", encode(pattern))));
    if args.reverse {
        query.push("reverse=true".to_owned());
    }
    if args.keys_only || !args.json {
        query.push("keys_only=true".to_owned());
    }
    Ok(query.join("&"))
}

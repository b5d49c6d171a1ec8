//! A run as a sequence diagram: a line of life per node, an arrow per message, a note per thing that happened at a node.

use std::fmt::Write as _;

use super::plot::escape;

/// One line of a diagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Virtual time in microseconds.
    pub at: u64,
    /// The node where it happened, or that received.
    pub node: usize,
    /// The node that sent, for a message.
    pub from: Option<usize>,
    /// What it is.
    pub text: String,
}

const COLUMN: usize = 14;

/// The diagram as text: time, a column per node, arrows between them.
#[must_use]
pub fn text(nodes: usize, entries: &[Entry]) -> String {
    let mut out = format!("{:>12} ", "time/ms");
    for node in 0..nodes {
        let _ = write!(out, "{:^COLUMN$}", format!("n{node}"));
    }
    out.push('\n');
    for entry in entries {
        let mut line: Vec<char> = vec![' '; nodes * COLUMN];
        let centre = |node: usize| node * COLUMN + COLUMN / 2;
        for node in 0..nodes {
            put(&mut line, centre(node), '|');
        }
        match entry.from {
            Some(from) if from != entry.node => {
                let (start, end) = (centre(from), centre(entry.node));
                for at in start.min(end) + 1..start.max(end) {
                    put(&mut line, at, '-');
                }
                if start < end {
                    put(&mut line, end - 1, '>');
                } else {
                    put(&mut line, end + 1, '<');
                }
            }
            _ => put(&mut line, centre(entry.node), '*'),
        }
        let line: String = line.into_iter().collect();
        let _ = writeln!(out, "{:>8}.{:03} {line} {}", entry.at / 1_000, entry.at % 1_000, entry.text);
    }
    out
}

fn put(line: &mut [char], at: usize, what: char) {
    if let Some(place) = line.get_mut(at) {
        *place = what;
    }
}

/// The diagram as one SVG file.
#[must_use]
pub fn svg(nodes: usize, entries: &[Entry]) -> String {
    const STEP: usize = 18;
    const SPAN: usize = 110;
    let width = 90 + nodes * SPAN + 420;
    let height = 40 + entries.len() * STEP;
    let centre = |node: usize| 90 + node * SPAN + SPAN / 2;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"11\"><defs><marker id=\"a\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" \
         refY=\"3\" orient=\"auto\"><path d=\"M0,0 L7,3 L0,6 z\"/></marker></defs>"
    );
    for node in 0..nodes {
        let x = centre(node);
        let _ = write!(
            out,
            "<text x=\"{x}\" y=\"14\" text-anchor=\"middle\" font-weight=\"bold\">n{node}</text>\
             <line x1=\"{x}\" y1=\"20\" x2=\"{x}\" y2=\"{height}\" stroke=\"#bbb\"/>"
        );
    }
    for (row, entry) in entries.iter().enumerate() {
        let y = 36 + row * STEP;
        let x = centre(entry.node);
        let _ = write!(out, "<text x=\"4\" y=\"{y}\" fill=\"#777\">{}.{:03}</text>", entry.at / 1_000, entry.at % 1_000);
        match entry.from {
            Some(from) if from != entry.node => {
                let start = centre(from);
                let _ = write!(
                    out,
                    "<line x1=\"{start}\" y1=\"{}\" x2=\"{x}\" y2=\"{y}\" stroke=\"#036\" marker-end=\"url(#a)\"/>",
                    y - 6
                );
            }
            _ => {
                let _ = write!(out, "<circle cx=\"{x}\" cy=\"{}\" r=\"4\" fill=\"#a30\"/>", y - 4);
            }
        }
        let _ = write!(out, "<text x=\"{}\" y=\"{y}\">{}</text>", 100 + nodes * SPAN, escape(&entry.text));
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        vec![
            Entry { at: 1_500, node: 0, from: None, text: "put /a".to_owned() },
            Entry { at: 2_000, node: 2, from: Some(0), text: "blocks <1>".to_owned() },
            Entry { at: 2_100, node: 0, from: Some(2), text: "ack".to_owned() },
        ]
    }

    #[test]
    fn arrows_point_from_sender_to_receiver() {
        let text = text(3, &entries());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].contains("1.500") && lines[1].contains('*'));
        assert!(lines[2].contains("->|") && lines[3].contains("|<-"), "{text}");
    }

    #[test]
    fn the_picture_escapes_what_it_shows() {
        let svg = svg(3, &entries());
        assert!(svg.contains("blocks &lt;1&gt;") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("marker-end").count(), 2);
    }
}

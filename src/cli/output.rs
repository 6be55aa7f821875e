//! Text for people: aligned tables, times, and writing that survives a closed pipe.
//!
//! What comes from peers (reasons, tags, names of operators) is cleaned of control characters before it reaches a terminal.

use std::{
    io::{self, ErrorKind, Write},
    time::{Duration, UNIX_EPOCH},
};

use comfy_table::{Table, presets::NOTHING};
use serde_json::Value;

use crate::types::{BasisPoints, Wall};

/// An aligned table, columns two spaces apart, one line a row; `empty` stands for a table without rows.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, empty: &str) -> String {
    if rows.is_empty() {
        return format!("{empty}\n");
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| if cell.is_empty() { "-".to_owned() } else { clean(cell) }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    lines(table.lines())
}

/// Names and values, the values aligned; empty values are left out.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let shown = pairs.iter().filter(|(_, value)| !value.is_empty());
    lines(shown.map(|(name, value)| format!("{name:<width$}  {}", clean(value))))
}

fn lines(lines: impl Iterator<Item = String>) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Pretty JSON: keys in order, a newline at the end.
pub fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// One line without control characters.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// UTC, to the second. A time past the year 9999 (a peer may claim anything) is shown as its number.
pub fn time(at: Wall) -> String {
    if at.0 >= YEAR_10000 {
        return format!("{} ms", at.0);
    }
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(at.0)).to_string()
}

/// Basis points as a percentage without needless digits: `5%`, `0.5%`, `5.25%`.
pub fn share(size: BasisPoints) -> String {
    let (whole, part) = (size / 100, size % 100);
    match part {
        0 => format!("{whole}%"),
        _ if part % 10 == 0 => format!("{whole}.{}%", part / 10),
        _ => format!("{whole}.{part:02}%"),
    }
}

/// The first few of a list, and how many more.
pub fn first_few<T: AsRef<str>>(items: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let count = items.len();
    let shown: Vec<String> = items.take(most).map(|item| item.as_ref().to_owned()).collect();
    match count.saturating_sub(most) {
        0 => shown.join(","),
        more => format!("{} and {more} more", shown.join(",")),
    }
}

/// Writes all of it. A reader that went away (`| head -1`) is no error: it has what it wanted.
pub fn write_all(mut to: impl Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// 10000-01-01T00:00:00Z.
const YEAR_10000: u64 = 253_402_300_800_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_without_trailing_blanks() {
        let rows =
            vec![vec!["n1".into(), "alive".into(), String::new()], vec!["node-22".into(), "down".into(), "x".into()]];
        assert_eq!(
            table(&["NAME", "STATE", "WHY"], rows, "none"),
            "NAME     STATE  WHY\nn1       alive  -\nnode-22  down   x\n"
        );
        assert_eq!(table(&["NAME"], vec![], "no members"), "no members\n");
    }

    #[test]
    fn a_peer_cannot_send_escape_sequences_to_the_terminal() {
        let text = table(&["A"], vec![vec!["\u{1b}[31mred\nnext".into()]], "");
        assert_eq!(text, "A\n\u{fffd}[31mred\u{fffd}next\n");
        assert!(!crate::client::clean_lines("a\u{9b}b\r\nc").contains(['\u{9b}', '\r']));
    }

    #[test]
    fn times_never_fail() {
        assert_eq!(time(Wall(0)), "1970-01-01T00:00:00Z");
        assert_eq!(time(Wall(YEAR_10000 - 1)), "9999-12-31T23:59:59Z");
        assert_eq!(time(Wall(u64::MAX)), "18446744073709551615 ms");
    }

    #[test]
    fn shares_have_no_needless_digits() {
        assert_eq!([0, 1, 10, 50, 500, 525, 10_000].map(share), ["0%", "0.01%", "0.1%", "0.5%", "5%", "5.25%", "100%"]);
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        struct Broken(ErrorKind);
        impl Write for Broken {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(write_all(Broken(ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write_all(Broken(ErrorKind::StorageFull), "x").is_err());
    }
}

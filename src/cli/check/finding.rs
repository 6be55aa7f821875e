//! What a check found, and how it is printed: one line each, or JSON with keys that stay.

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::output;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// It works, and deserves a second look.
    Warn,
    /// It does not work, or will not.
    Fail,
    /// It could not be looked at.
    Skip,
}

impl Verdict {
    /// As it is printed: what needs somebody stands out.
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
            Self::Skip => "skip",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Which check: `group.name`.
    pub name: &'static str,
    /// How it ended.
    pub result: Verdict,
    /// What was seen, or why it could not be looked at.
    pub seen: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

/// As it should be.
pub(super) fn ok(name: &'static str, seen: impl Into<String>) -> Finding {
    Finding { name, result: Verdict::Ok, seen: seen.into(), cure: None }
}

/// Deserves a second look.
pub(super) fn warn(name: &'static str, seen: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { name, result: Verdict::Warn, seen: seen.into(), cure: Some(cure.into()) }
}

/// Does not work.
pub(super) fn fail(name: &'static str, seen: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding { name, result: Verdict::Fail, seen: seen.into(), cure: Some(cure.into()) }
}

/// Could not be looked at.
pub(super) fn skip(name: &'static str, why: impl Into<String>) -> Finding {
    Finding { name, result: Verdict::Skip, seen: why.into(), cure: None }
}

/// The message of an error that carries its own cure after the last `: ` or `; `, as those of certificates do, taken apart.
pub(super) fn with_cure(text: &str, otherwise: &str) -> (String, String) {
    let at = text.rfind(": ").into_iter().chain(text.rfind("; ")).max();
    match at.map(|at| (&text[..at], &text[at + 2..])) {
        Some((seen, cure)) if !seen.is_empty() && cure.contains(' ') => (seen.to_owned(), cure.to_owned()),
        _ => (text.to_owned(), otherwise.to_owned()),
    }
}

/// Everything that was found.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Whose sidecar, where that is known.
    pub node: Option<String>,
    /// Where it was asked; `None` when nobody answered.
    pub sidecar: Option<String>,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Report {
    fn count(&self, result: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.result == result).count()
    }

    /// 0: nothing failed. 1: something did. 3: nothing could be looked at.
    pub fn exit(&self) -> u8 {
        match (self.count(Verdict::Fail), self.count(Verdict::Skip) == self.findings.len()) {
            (0, false) => 0,
            (0, true) => 3,
            _ => 1,
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let counts = json!({
            "ok": self.count(Verdict::Ok), "warn": self.count(Verdict::Warn),
            "fail": self.count(Verdict::Fail), "skip": self.count(Verdict::Skip),
        });
        let exit = self.exit();
        json!({
            "ok": exit == 0, "exit": exit, "node": self.node, "sidecar": self.sidecar,
            "counts": counts, "checks": self.findings,
        })
    }

    /// For people: a line for each check; those that were not possible for the same reason together, last.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let width = self.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
        for finding in self.findings.iter().filter(|finding| finding.result != Verdict::Skip) {
            let (word, name, seen) = (finding.result.word(), finding.name, output::clean(&finding.seen));
            text.push_str(&format!("{word:<4}  {name:<width$}  {seen}"));
            if let Some(cure) = &finding.cure {
                text.push_str(&format!("; cure: {}", output::clean(cure)));
            }
            text.push('\n');
        }
        let mut reasons: Vec<&str> = Vec::new();
        for finding in self.findings.iter().filter(|finding| finding.result == Verdict::Skip) {
            if !reasons.contains(&&*finding.seen) {
                reasons.push(&finding.seen);
            }
        }
        for reason in reasons {
            let names: Vec<&str> = self.findings.iter().filter(|f| f.seen == reason).map(|f| f.name).collect();
            let (word, reason) = (Verdict::Skip.word(), output::clean(reason));
            text.push_str(&format!("{word:<4}  not possible, {reason}: {}\n", names.join(", ")));
        }
        let [ok, warn, fail, skip] =
            [Verdict::Ok, Verdict::Warn, Verdict::Fail, Verdict::Skip].map(|result| self.count(result));
        text.push_str(&format!("{ok} ok, {warn} to look at, {fail} failed, {skip} not possible\n"));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report { findings, ..Report::default() }
    }

    #[test]
    fn a_line_for_each_and_what_was_not_possible_last() {
        let report = report(vec![
            ok("a.good", "fine"),
            skip("b.later", "no sidecar answers"),
            fail("c.bad", "taken by \u{1b}[31mnginx", "stop it"),
            skip("d.later", "no sidecar answers"),
            warn("e.odd", "short", "renew it"),
        ]);
        assert_eq!(
            report.text(),
            "ok    a.good   fine\n\
             FAIL  c.bad    taken by \u{fffd}[31mnginx; cure: stop it\n\
             warn  e.odd    short; cure: renew it\n\
             skip  not possible, no sidecar answers: b.later, d.later\n\
             1 ok, 1 to look at, 1 failed, 2 not possible\n"
        );
        assert_eq!(report.json()["counts"]["skip"], 2);
    }

    #[test]
    fn exit_codes_tell_failed_from_not_possible() {
        assert_eq!(report(vec![ok("a.a", ""), warn("b.b", "", ""), skip("c.c", "")]).exit(), 0);
        assert_eq!(report(vec![ok("a.a", ""), fail("b.b", "", "")]).exit(), 1);
        assert_eq!(report(vec![skip("a.a", ""), skip("b.b", "")]).exit(), 3);
    }

    #[test]
    fn errors_that_carry_their_cure_are_taken_apart() {
        let (seen, cure) = with_cure("n1.pem: the certificate expired on 1 May: issue a new one", "x");
        assert_eq!((&*seen, &*cure), ("n1.pem: the certificate expired on 1 May", "issue a new one"));
        assert_eq!(with_cure("broken", "look at it"), ("broken".into(), "look at it".into()));
    }
}

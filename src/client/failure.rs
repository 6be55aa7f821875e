//! How a command ends when it does not succeed: exit code, reason, cure.

use std::{fmt, process::ExitCode};

use serde_json::json;

/// Exit codes besides 0; documented in `--help`, stable for scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Refused, or failed for a reason that the message names.
    Failed = 1,
    /// The command line makes no sense (also what clap itself ends with).
    Usage = 2,
    /// No sidecar there, or it did not answer in time.
    Unreachable = 3,
    /// The sidecar knows no such thing.
    NotFound = 4,
    /// The token is missing, unreadable or wrong, or the address does not belong to the sidecar.
    NotAllowed = 5,
}

/// Why a command did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    pub cure: Option<String>,
}

impl Failure {
    /// Without a cure.
    pub fn new(exit: Exit, error: impl Into<String>) -> Self {
        Self { exit, error: error.into(), cure: None }
    }

    /// With a cure.
    pub fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }

    /// As it is printed to standard error: for people, or as one line of JSON.
    pub fn render(&self, as_json: bool) -> String {
        if !as_json {
            return format!("{self}\n");
        }
        let mut body = json!({ "error": self.error, "exit": self.exit as u8 });
        if let Some(cure) = &self.cure {
            body["cure"] = json!(cure);
        }
        format!("{body}\n")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", clean_lines(&self.error))?;
        match &self.cure {
            Some(cure) => write!(f, "\n  cure: {}", clean_lines(cure)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        // Some errors word their cause themselves; it is not said twice.
        let mut text = error.to_string();
        for cause in error.chain().skip(1).map(ToString::to_string) {
            if !text.contains(&cause) {
                text.push_str(&format!(": {cause}"));
            }
        }
        Self::new(Exit::Failed, text)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Without control characters except line ends.
pub fn clean_lines(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let gone = || std::io::Error::other("gone");
        let said = anyhow::Error::new(gone()).context("cannot read a.pem: gone");
        assert_eq!(Failure::from(said).error, "cannot read a.pem: gone");
        let unsaid = anyhow::Error::new(gone()).context("cannot read a.pem");
        assert_eq!(Failure::from(unsaid).error, "cannot read a.pem: gone");
    }

    #[test]
    fn failures_read_well_for_people_and_programs() {
        let failure = Failure::new(Exit::Unreachable, "nothing listens").cure("start it");
        assert_eq!(failure.render(false), "error: nothing listens\n  cure: start it\n");
        assert_eq!(failure.render(true), "{\"cure\":\"start it\",\"error\":\"nothing listens\",\"exit\":3}\n");
    }
}

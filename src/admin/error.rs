//! The one shape of every refusal: status, what is wrong, and the cure where there is one.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};

use crate::agent::CommandError;

/// Body of every answer that is not a success: `{"error": "...", "cure": "..."}`, the cure only where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong, in one sentence.
    pub error: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

/// A refusal on its way to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub status: StatusCode,
    pub body: ErrorBody,
}

impl Problem {
    pub fn new(status: StatusCode, error: impl Into<String>) -> Self {
        Self { status, body: ErrorBody { error: error.into(), cure: None } }
    }

    pub fn cure(mut self, cure: impl Into<String>) -> Self {
        self.body.cure = Some(cure.into());
        self
    }
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        let status = match &error {
            CommandError::Refused(_) => StatusCode::UNPROCESSABLE_ENTITY,
            CommandError::NotFound(_) => StatusCode::NOT_FOUND,
            CommandError::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

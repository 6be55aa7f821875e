//! Questions. Nothing here changes anything.

use axum::{
    Json,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;

use super::{
    AdminState,
    error::Problem,
    views::{OutcomeInfo, Readiness, ServiceInfo},
};
use crate::{
    agent::{Diagnostics, InstanceInfo, MemberInfo, MemberStory, NodeInfo, PolicyInfo},
    lanes::PlainHead,
    node::PeerView,
    routing::{Explanation, MeshAnswer, Question, RingReport, ServiceView, SignalsReport, Snapshot},
    telemetry::ObservedSubject,
    types::{InstanceId, Lane, MemberState, NodeId, ServiceName},
};

type Answer<T> = Result<Json<T>, Problem>;

/// `GET /`: what there is to ask, one line each.
pub(super) async fn index() -> &'static str {
    INDEX
}

/// `GET /health`: this process answers.
pub(super) async fn health() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "alive" }))
}

/// `GET /ready`: 200 when nothing is waited for, else 503 and what.
pub(super) async fn ready(State(state): State<AdminState>) -> Response {
    let waiting_for = (state.ready)();
    let ready = waiting_for.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, waiting_for })).into_response()
}

/// `GET /metrics`: OpenMetrics text.
pub(super) async fn metrics(State(state): State<AdminState>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (state.metrics)()).into_response()
}

/// `GET /v1/info`.
pub(super) async fn info(State(state): State<AdminState>) -> Answer<NodeInfo> {
    Ok(Json(state.handle.info().await?))
}

/// Filter of `GET /v1/members`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberFilter {
    /// States, separated by commas; all when absent.
    state: Option<String>,
}

/// `GET /v1/members?state=`.
pub(super) async fn members(
    State(state): State<AdminState>,
    filter: Result<Query<MemberFilter>, axum::extract::rejection::QueryRejection>,
) -> Answer<Vec<MemberInfo>> {
    let wanted = query(filter)?.state.map(|text| states(&text)).transpose()?;
    let mut members = state.handle.members().await?;
    members.retain(|member| wanted.as_ref().is_none_or(|states| states.contains(&member.state)));
    Ok(Json(members))
}

/// `GET /v1/members/{node}`.
pub(super) async fn member(State(state): State<AdminState>, Path(node): Path<String>) -> Answer<MemberStory> {
    let node = parsed(NodeId::new(&node))?;
    state.handle.member(node.clone()).await?.map(Json).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, format!("no member `{node}` is known here"))
            .cure("`lanemesh members --all` lists them")
    })
}

/// `GET /v1/compare`: how each peer's view differs from this sidecar's.
pub(super) async fn compare(State(state): State<AdminState>) -> Answer<Vec<PeerView>> {
    Ok(Json(state.handle.compare().await?))
}

/// `GET /v1/diagnostics`: this sidecar's seeds, clock and certificate.
pub(super) async fn diagnostics(State(state): State<AdminState>) -> Answer<Diagnostics> {
    Ok(Json(state.handle.diagnostics().await?))
}

/// `GET /v1/outcomes`: every instance of the routing view, and what requests from here met there.
pub(super) async fn outcomes(State(state): State<AdminState>) -> Json<Vec<OutcomeInfo>> {
    Json(OutcomeInfo::all(&state.handle.snapshot(), (state.clock)()))
}

/// `GET /v1/services`.
pub(super) async fn services(State(state): State<AdminState>) -> Json<Vec<ServiceInfo>> {
    let snapshot = state.handle.snapshot();
    Json(snapshot.services().map(|view| ServiceInfo::of(&snapshot, view)).collect())
}

/// Filter of `GET /v1/instances`; all given ones must fit.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InstanceFilter {
    service: Option<ServiceName>,
    lane: Option<Lane>,
    node: Option<NodeId>,
}

/// `GET /v1/instances?service=&lane=&node=`.
pub(super) async fn instances(
    State(state): State<AdminState>,
    filter: Result<Query<InstanceFilter>, axum::extract::rejection::QueryRejection>,
) -> Answer<Vec<InstanceInfo>> {
    let filter = query(filter)?;
    let mut instances = state.handle.instances().await?;
    instances.retain(|info| {
        filter.service.as_ref().is_none_or(|service| *service == info.record.service)
            && filter.lane.as_ref().is_none_or(|lane| lane == info.lane())
            && filter.node.as_ref().is_none_or(|node| *node == info.record.owner)
    });
    Ok(Json(instances))
}

/// `GET /v1/instances/{id}`: by instance id; one object, or 404. Where two nodes claim the id, the one that is routed to.
pub(super) async fn instance(State(state): State<AdminState>, Path(id): Path<String>) -> Answer<InstanceInfo> {
    let id = parsed(InstanceId::new(&id))?;
    let mut found = state.handle.instances().await?;
    found.retain(|instance| instance.record.id == id);
    // Candidates first; the sort is stable, so that the agent's own order decides the rest.
    found.sort_by_key(|instance| instance.excluded.is_some());
    match found.into_iter().next() {
        Some(instance) => Ok(Json(instance)),
        None => Err(Problem::new(StatusCode::NOT_FOUND, format!("no instance `{id}` is known here"))
            .cure("`lanemesh instances` lists them")),
    }
}

/// `GET /v1/policies`.
pub(super) async fn policies(State(state): State<AdminState>) -> Answer<Vec<PolicyInfo>> {
    Ok(Json(state.handle.policies().await?))
}

/// `GET /v1/policies/{service}`.
pub(super) async fn policy(State(state): State<AdminState>, Path(service): Path<String>) -> Answer<PolicyInfo> {
    let service = parsed(ServiceName::new(&service))?;
    let found = state.handle.policies().await?.into_iter().find(|info| info.policy.service == service);
    found.map(Json).ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, format!("service `{service}` has no policy: everybody goes to stable"))
            .cure(format!("`lanemesh policy set {service} --canary 5%` makes one"))
    })
}

/// What `GET /v1/route/{service}` is asked about.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteQuery {
    /// What is hashed on the ring; read from the headers when absent.
    key: Option<String>,
    /// Who is bucketed; read from the headers when absent, else the key; nobody when empty.
    subject: Option<String>,
    /// An explicit lane, as the request's lane header would name it.
    lane: Option<String>,
    /// HTTP method; GET when absent.
    method: Option<String>,
    /// Path without the query; `/` when absent.
    path: Option<String>,
    /// Request headers, `name: value` each on a line of its own.
    headers: Option<String>,
}

impl RouteQuery {
    fn question(self, service: String) -> Result<Question, Problem> {
        let lines = self.headers.as_deref().unwrap_or_default().lines().filter(|line| !line.trim().is_empty());
        let header = |line: &str| match line.split_once(':') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
            }
            _ => Err(Problem::new(StatusCode::BAD_REQUEST, "a header is written `name: value`")),
        };
        let path = self.path.unwrap_or_else(|| "/".into());
        if !path.starts_with('/') {
            return Err(Problem::new(StatusCode::BAD_REQUEST, "a path begins with `/`"));
        }
        let head = PlainHead {
            method: self.method.unwrap_or_else(|| "GET".into()).to_ascii_uppercase(),
            // As the proxy reads it: rules do not see the query.
            path: path.split(['?', '#']).next().unwrap_or_default().to_owned(),
            headers: lines.map(header).collect::<Result<_, _>>()?,
        };
        let Self { key, subject, lane, .. } = self;
        Ok(Question { service, key, subject, lane, head, random: random()? })
    }
}

/// `GET /v1/route/{service}?key=&subject=&lane=&method=&path=&headers=`: decides on the snapshot in force, by the proxy's own code.
pub(super) async fn route(
    State(state): State<AdminState>,
    Path(service): Path<String>,
    asked: Result<Query<RouteQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer<Explanation> {
    let question = query(asked)?.question(service)?;
    let snapshot = state.handle.snapshot();
    known(&snapshot, &question.service)?;
    let gone = || Problem::new(StatusCode::NOT_FOUND, "the service has just gone");
    question.answer(&snapshot, (state.clock)()).map(Json).ok_or_else(gone)
}

/// `GET /v1/mesh-route/{service}`: the same, asked of every active member.
pub(super) async fn mesh_route(
    State(state): State<AdminState>,
    Path(service): Path<String>,
    asked: Result<Query<RouteQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer<MeshAnswer> {
    let question = query(asked)?.question(service)?;
    known(&state.handle.snapshot(), &question.service)?;
    Ok(Json(state.handle.ask_mesh(question).await?))
}

/// `GET /v1/ring/{service}`: how the keys spread over the instances of each lane.
pub(super) async fn ring(State(state): State<AdminState>, Path(service): Path<String>) -> Answer<RingReport> {
    // Sampling keys takes some milliseconds, too long for the thread that gossip may be waiting for.
    let report = move || {
        let snapshot = state.handle.snapshot();
        known(&snapshot, &service).map(|view| Json(RingReport::of(view, (state.clock)())))
    };
    let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the report could not be made");
    tokio::task::spawn_blocking(report).await.map_err(failed)?
}

/// `GET /v1/signals`: what sidecars see fail, and what follows here.
pub(super) async fn signals(State(state): State<AdminState>) -> Answer<SignalsReport> {
    Ok(Json(state.handle.signals().await?))
}

/// `GET /v1/observe`: subjects under observation.
pub(super) async fn observed(State(state): State<AdminState>) -> Answer<Vec<ObservedSubject>> {
    Ok(Json(state.handle.observed().await?))
}

/// Names that are no names get 400.
pub(super) fn parsed<T>(name: Result<T, crate::types::NameError>) -> Result<T, Problem> {
    name.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))
}

fn query<T>(query: Result<Query<T>, axum::extract::rejection::QueryRejection>) -> Result<T, Problem> {
    query.map(|Query(value)| value).map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.body_text()))
}

fn states(text: &str) -> Result<Vec<MemberState>, Problem> {
    let state = |word: &str| match word {
        "alive" => Ok(MemberState::Alive),
        "doubtful" => Ok(MemberState::Doubtful),
        "down" => Ok(MemberState::Down),
        "left" => Ok(MemberState::Left),
        _ => Err(Problem::new(StatusCode::BAD_REQUEST, "states are alive, doubtful, down and left")),
    };
    text.split(',').map(state).collect()
}

fn known<'a>(snapshot: &'a Snapshot, service: &str) -> Result<&'a ServiceView, Problem> {
    snapshot.service(service).ok_or_else(|| {
        let shown: String = service.chars().filter(|c| !c.is_control()).take(80).collect();
        let names: Vec<&str> = snapshot.services().map(|view| view.name.as_str()).collect();
        let known = match names.len() {
            0 => "no service is known here yet: is the sidecar ready (`/ready`), has it joined (`lanemesh members`)?"
                .into(),
            count => {
                let more = if count > MOST_NAMES { format!(" and {} more", count - MOST_NAMES) } else { String::new() };
                format!("known services: {}{more}", names[..count.min(MOST_NAMES)].join(", "))
            }
        };
        Problem::new(StatusCode::NOT_FOUND, format!("no service `{shown}` is known here")).cure(known)
    })
}

fn random() -> Result<u64, Problem> {
    let mut bytes = [0; 8];
    let failed = |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the operating system gave no random bytes");
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Most names in the answer for an unknown service.
const MOST_NAMES: usize = 50;

const INDEX: &str = "\
lanemesh admin API. Reads (GET), JSON:
  /v1/info                       this sidecar
  /v1/members                    members as this sidecar sees them (?state=alive,down)
  /v1/members/{node}             one member: who accuses it, its probes, what happened
  /v1/compare                    how each peer's view differs from this sidecar's
  /v1/services                   services and their lanes, as requests see them
  /v1/instances                  instances (?service= &lane= &node=)
  /v1/instances/{id}             one instance
  /v1/policies                   lane policies
  /v1/policies/{service}         one lane policy
  /v1/route/{service}            where a request goes, and why (?key= &subject= &lane= &method= &path= &headers=)
  /v1/mesh-route/{service}       the same of every node, and in what they differ
  /v1/ring/{service}             how the keys spread over instances
  /v1/signals                    what sidecars see fail, and what follows here
  /v1/outcomes                   what requests from here met at each instance lately
  /v1/diagnostics                this sidecar's seeds, clock and certificate
  /v1/observe                    subjects whose requests are all logged
  /metrics                       OpenMetrics text
  /health                        200: this process answers
  /ready                         200: ready; 503: what it waits for

Orders (JSON body, `authorization: Bearer <token>`):
  PATCH  /v1/instances/{id}        change weight, lane, version, tags, capacity
  POST   /v1/instances             register an instance
  DELETE /v1/instances/{id}        deregister it
  POST   /v1/drain                 {\"ids\": [...], \"reason\": \"\", \"by\": \"\", \"min_ready\": 1}
  POST   /v1/undrain               {\"ids\": [...]}
  PATCH  /v1/policies/{service}    change its lane policy, mesh-wide
  POST   /v1/rollback/{service}    {\"reason\": \"\"}: everybody to stable, mesh-wide
  POST   /v1/observe               {\"subject\": \"u1\", \"for_ms\": 600000}: log all its requests, mesh-wide
  POST   /v1/leave                 say goodbye to the mesh
";

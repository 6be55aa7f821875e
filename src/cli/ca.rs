//! `lanemesh ca init` and `ca issue`: the mesh's own certificate authority, on this machine, without a sidecar.

use std::{path::PathBuf, time::Duration};

use serde_json::json;

use super::{Exit, Failure, Outcome, output};
use crate::{
    config::parse_duration,
    pki::{Authority, IssuedFiles, LeafRequest, PkiError},
    types::{MeshName, NodeId, ServiceName, Wall},
};

/// Make a mesh's certificate authority, and certificates of its nodes
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a certificate authority (ca.pem and ca-key.pem)
    Init {
        /// Name of the mesh; sidecars of other meshes are refused
        #[arg(long, default_value = "mesh")]
        mesh: MeshName,
        /// Directory of the authority
        #[arg(long, value_name = "DIR", default_value = "ca")]
        dir: PathBuf,
        /// Replace an authority that is there: certificates of the old one are then worth nothing
        #[arg(long)]
        force: bool,
    },
    /// Issue a node's certificate and key
    Issue(Issue),
}

#[derive(Debug, clap::Args)]
struct Issue {
    /// Node id that the certificate names
    #[arg(long)]
    node: NodeId,
    /// Service that the node may announce; may be repeated. None: a pure client
    #[arg(long = "service", value_name = "SERVICE")]
    services: Vec<ServiceName>,
    /// The node may announce any service (a gateway, or a sidecar for remote instances)
    #[arg(long, conflicts_with = "services")]
    any_service: bool,
    /// Directory of the authority
    #[arg(long, value_name = "DIR", default_value = "ca")]
    dir: PathBuf,
    /// Directory for NODE.pem, NODE-key.pem and ca.pem
    #[arg(long, value_name = "DIR", default_value = "identity")]
    out: PathBuf,
    /// How long it is valid, such as 90d
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "365d")]
    valid_for: Duration,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args, json: bool) -> Outcome {
    match &args.verb {
        Verb::Init { mesh, dir, force } => {
            let made = Authority::create(dir, mesh, now(), *force).map_err(failed)?;
            let (mesh, dir) = (made.mesh(), dir.display());
            Ok(if json {
                output::json(&json!({ "mesh": mesh.as_str(), "dir": dir.to_string() }))
            } else {
                format!(
                    "made the authority of mesh `{mesh}` in {dir}\n\
                     next: lanemesh ca issue --dir {dir} --node NODE --service SERVICE\n"
                )
            })
        }
        Verb::Issue(issue) => {
            let authority = Authority::open(&issue.dir).map_err(failed)?;
            let request = LeafRequest {
                node: issue.node.clone(),
                services: issue.services.clone(),
                any_service: issue.any_service,
                valid_for: issue.valid_for,
            };
            let files = authority.issue(&request, &issue.out, now(), issue.force).map_err(failed)?;
            Ok(issued(&authority, &request, &files, json))
        }
    }
}

fn issued(authority: &Authority, request: &LeafRequest, files: &IssuedFiles, json: bool) -> String {
    let path = |path: &PathBuf| path.display().to_string();
    let (certificate, key, ca) = (path(&files.certificate), path(&files.key), path(&files.ca));
    let services: Vec<&str> = request.services.iter().map(ServiceName::as_str).collect();
    if json {
        return output::json(&json!({
            "mesh": authority.mesh().as_str(),
            "node": request.node.as_str(),
            "services": services,
            "any_service": request.any_service,
            "certificate": certificate,
            "key": key,
            "ca": ca,
        }));
    }
    let may = match (request.any_service, services.is_empty()) {
        (true, _) => "any service".to_owned(),
        (false, true) => "no service".to_owned(),
        (false, false) => services.join(", "),
    };
    format!(
        "issued a certificate of mesh `{}` to node `{}`, which may announce {may}. In its configuration:\n\n\
         [identity]\ncertificate = {certificate:?}\nkey = {key:?}\nca = {ca:?}\n",
        authority.mesh(),
        request.node,
    )
}

fn failed(error: PkiError) -> Failure {
    Failure::new(Exit::Failed, error.to_string())
}

fn now() -> Wall {
    crate::telemetry::Clock::start().wall()
}

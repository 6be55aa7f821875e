//! Datagrams and gossip streams: no bytes of a peer end the process, and what was read can be written and read again.
#![no_main]

use bytes::Bytes;
use lanemesh::wire::{Body, Envelope, Frame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok((envelope, _)) = Envelope::decode(Bytes::copy_from_slice(bytes)) else { return };
    let (again, faults) = Envelope::decode(envelope.encode()).expect("what was written can be read");
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(again.digest, envelope.digest);
    assert_eq!(again.frames.len(), envelope.frames.len());
    for frame in &envelope.frames {
        if let Frame::Statement(statement) = frame {
            let Ok(body) = Body::decode(statement) else { continue };
            let mut written = statement.clone();
            written.body = body.encode().into();
            assert_eq!(Body::decode(&written).expect("what was written can be read"), body);
        }
    }
});

//! Fabrics commands on an existing queue: properties.

use std::rc::Rc;
use std::sync::Arc;

use forebay_io::rt;
use forebay_wire::nvme::fabrics::{Property, fctype, property};
use forebay_wire::nvme::identify::VERSION;
use forebay_wire::nvme::{Command, Status};

use super::MAX_QUEUE_SIZE;
use super::command::flush_all;
use super::connection::{Connection, Outcome, no_data};

/// Controller capabilities (Base 3.1.3.1): entries of a queue from zero, queues contiguous, 15 s to
/// become ready, the NVM command set, pages of 4 KiB.
const CAPABILITIES: u64 = (MAX_QUEUE_SIZE as u64 - 1) | 1 << 16 | 30 << 24 | 1 << 37;

/// Executes a Fabrics command.
pub(super) fn run(connection: &Rc<Connection>, command: &Command) -> Outcome {
    let controller = connection.controller();
    let property = Property::of(command);
    match command.nsid.to_le_bytes()[0] {
        fctype::PROPERTY_GET => {
            no_data(command)?;
            let value = match (property.offset, property.wide) {
                (property::CAP, Some(true)) => CAPABILITIES,
                (property::VS, Some(false)) => u64::from(VERSION),
                (property::CC, Some(false)) => u64::from(controller.configuration()),
                (property::CSTS, Some(false)) => u64::from(controller.status()),
                _ => return Err(Status::INVALID_FIELD.into()),
            };
            Ok((value, None))
        }
        fctype::PROPERTY_SET => {
            no_data(command)?;
            let (property::CC, Some(false)) = (property.offset, property.wide) else {
                return Err(Status::INVALID_FIELD.into());
            };
            let value = u32::try_from(property.value & 0xffff_ffff).expect("32 bits");
            if controller.configure(value) {
                shut_down(connection);
            }
            Ok((0, None))
        }
        // Also a second Connect.
        fctype::CONNECT => Err(Status::COMMAND_SEQUENCE_ERROR.into()),
        _ => Err(Status::INVALID_OPCODE.into()),
    }
}

/// Flushes the host's writes, then reports the shutdown as complete. If the flush fails, the
/// shutdown never completes, which the host can detect.
fn shut_down(connection: &Rc<Connection>) {
    let connection = Rc::clone(connection);
    rt::spawn(async move {
        let controller = Arc::clone(connection.controller());
        match flush_all(&connection).await {
            Ok(()) => controller.shut_down(),
            Err(_) => tracing::warn!(
                host = controller.host(),
                "an NVMe host shuts down, and the flush of its writes failed"
            ),
        }
    });
}

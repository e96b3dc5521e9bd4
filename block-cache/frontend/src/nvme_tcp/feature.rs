//! Features (Base 5.15, 5.27).

use forebay_wire::nvme::admin::feature;
use forebay_wire::nvme::{Command, Status};

use super::MAX_IO_QUEUES;
use super::connection::{Connection, Outcome};
use super::namespaces::Namespace;

/// Granularity of the keep-alive timer in units of 100 ms. Times are rounded up to it.
pub(super) const KEEP_ALIVE_100MS: u16 = 10;

/// Returns a feature. Current, default and saved value are the same.
pub(super) fn get(connection: &Connection, command: &Command) -> Outcome {
    let controller = connection.controller();
    let value = match command.words[0].to_le_bytes()[0] {
        feature::KEEP_ALIVE_TIMER => controller.keep_alive_ms(),
        feature::ASYNC_EVENTS => connection.events.wanted(),
        _ if controller.namespaces().is_none() => return Err(Status::INVALID_FIELD.into()),
        feature::ARBITRATION
        | feature::POWER_MANAGEMENT
        | feature::TEMPERATURE_THRESHOLD
        | feature::ERROR_RECOVERY
        | feature::WRITE_ATOMICITY => 0,
        feature::VOLATILE_WRITE_CACHE if has_cache(connection) => controller.write_cache().into(),
        feature::NUMBER_OF_QUEUES => queues(MAX_IO_QUEUES),
        _ => return Err(Status::INVALID_FIELD.into()),
    };
    Ok((value.into(), None))
}

/// Sets a feature.
pub(super) fn set(connection: &Connection, command: &Command) -> Outcome {
    let controller = connection.controller();
    let value = command.words[1];
    let mut result = 0;
    match command.words[0].to_le_bytes()[0] {
        feature::KEEP_ALIVE_TIMER => controller.set_keep_alive_ms(value),
        feature::ASYNC_EVENTS => connection.events.want(value),
        _ if controller.namespaces().is_none() => return Err(Status::INVALID_FIELD.into()),
        feature::VOLATILE_WRITE_CACHE if has_cache(connection) => {
            controller.set_write_cache(value & 1 != 0);
        }
        feature::NUMBER_OF_QUEUES => {
            let submission = value & 0xffff;
            let completion = value >> 16;
            if submission == 0xffff || completion == 0xffff {
                return Err(Status::INVALID_FIELD.into());
            }
            // Fabrics have as many submission as completion queues.
            let wanted = submission.min(completion) + 1;
            let given = u16::try_from(wanted).map_or(MAX_IO_QUEUES, |w| w.min(MAX_IO_QUEUES));
            result = queues(given);
        }
        feature::ARBITRATION
        | feature::POWER_MANAGEMENT
        | feature::TEMPERATURE_THRESHOLD
        | feature::ERROR_RECOVERY
        | feature::WRITE_ATOMICITY => return Err(Status::FEATURE_NOT_CHANGEABLE.into()),
        _ => return Err(Status::INVALID_FIELD.into()),
    }
    Ok((result.into(), None))
}

/// Encodes a number of queues, both kinds counted from zero.
fn queues(count: u16) -> u32 {
    let from_zero = u32::from(count - 1);
    from_zero | from_zero << 16
}

/// Returns whether completed writes may be in a volatile cache.
pub(super) fn has_cache(connection: &Connection) -> bool {
    let namespaces = connection.controller().namespaces();
    let volatile = |namespace: &Namespace| namespace.volume.info().volatile_cache;
    namespaces.is_some_and(|namespaces| namespaces.list().iter().any(volatile))
}

//! Requests to an image: their start, and their end on a thread of librbd.

use std::ptr::null_mut;
use std::sync::Arc;

use forebay_block::{Buf, Op};

use super::api::{self, Api, Handle};
use super::image::Image;
use super::port::{Command, Port, Token};

/// Starts a request, whose outcome `port` gets. Keeps the data until then.
pub(super) fn start(image: &Image, command: Command, port: &Arc<Port>) {
    let (api, image) = (image.api(), image.handle());
    let Command {
        token,
        op,
        offset,
        len,
        buf,
    } = command;
    let data = buf.as_ref().map_or(null_mut(), Buf::as_ptr).cast();
    let bytes = usize::try_from(len).expect("a machine of 64 bits");
    let ticket = Box::into_raw(Box::new(Ticket {
        api,
        token,
        port: Arc::clone(port),
        _data: buf,
    }));
    let mut completion = null_mut();
    // SAFETY: the handle lives through the call, and the ticket until `ended` takes it.
    let made =
        unsafe { (api.rbd_aio_create_completion)(ticket.cast(), ended, &raw mut completion) };
    let started = match made {
        // SAFETY: the image is open, the completion is new, and the ticket keeps the data,
        // which has `bytes` bytes.
        0 => unsafe {
            match op {
                Op::Read => (api.rbd_aio_read)(image, offset, bytes, data, completion),
                Op::Write { .. } => (api.rbd_aio_write)(image, offset, bytes, data, completion),
                Op::Discard => (api.rbd_aio_discard)(image, offset, len, completion),
                Op::WriteZeroes { unmap, .. } => {
                    let flags = if unmap { 0 } else { api::THICK };
                    let zero = api.rbd_aio_write_zeroes.expect("it was checked");
                    zero(image, offset, bytes, completion, flags, 0)
                }
                Op::Flush => unreachable!("an image has no volatile cache"),
            }
        },
        failed => failed,
    };
    if started < 0 {
        // SAFETY: a request that was not started calls nothing, so that this is the only owner
        // of the ticket and of the completion.
        let ticket = unsafe {
            if made == 0 {
                (api.rbd_aio_release)(completion);
            }
            Box::from_raw(ticket)
        };
        ticket.port.ended(ticket.token, started.into());
    }
}

/// Property of a request that librbd keeps until its end.
struct Ticket {
    api: &'static Api,
    token: Token,
    port: Arc<Port>,
    /// Memory that librbd reads or writes until the request has ended.
    _data: Option<Buf>,
}

/// Reports the outcome of a request, on a thread of librbd.
unsafe extern "C" fn ended(completion: Handle, argument: Handle) {
    // SAFETY: the argument is the ticket of this request, and librbd calls once for each.
    let ticket = unsafe { Box::from_raw(argument.cast::<Ticket>()) };
    // SAFETY: the completion is that of the request, which has ended.
    let result = unsafe {
        let result = (ticket.api.rbd_aio_get_return_value)(completion);
        (ticket.api.rbd_aio_release)(completion);
        result
    };
    ticket.port.ended(ticket.token, result as i64);
}

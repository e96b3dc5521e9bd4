//! Fairness on a reactor: a host with many commands leaves other hosts their turns.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request};
use forebay_frontend::nvme_tcp::{Exports, Subsystem, serve};
use forebay_io::net::{Address, Listener};
use forebay_io::{Engine, spawn_reactor};
use forebay_volume::Volume;

use crate::initiator::{Association, Identity, Queue, Style, on_blocks};
use crate::target::{NQN, SIZE_BYTES};
use crate::{BLOCK, READ};

/// Number of commands of the first host, the maximum of its queue.
const MANY: u16 = 127;
/// Number of commands of the second host, and their first block.
const FEW: u16 = 4;
const FEW_FROM: u64 = 1000;
/// Maximum number of turns before the few commands are served. The first of the many commands takes
/// a turn. In the next one the system reports new data, and the third receives it.
const TURNS: usize = 3;
/// Commands that a connection starts in a turn.
const BURST: usize = 8;

/// Log of requests, and the second host's socket after the first request.
#[derive(Default)]
struct Watched {
    /// First block of each request.
    blocks: Mutex<Vec<u64>>,
    knock: Mutex<Option<(TcpStream, Vec<u8>)>>,
}

struct Media(Arc<Watched>);

impl BlockDevice for Media {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("watched", SIZE_BYTES)
    }

    fn submit(&self, request: Request, done: Completion) {
        let block = request.offset / BLOCK as u64;
        self.0.blocks.lock().expect("sound").push(block);
        if let Some((mut stream, bytes)) = self.0.knock.lock().expect("sound").take() {
            stream.write_all(&bytes).expect("the target reads");
        }
        done.complete(Ok(()));
    }
}

/// Serves everything on one reactor until the process ends. Returns the address.
fn target(engine: Engine, watched: &Arc<Watched>) -> SocketAddr {
    let (send, receive) = mpsc::channel();
    let media = Media(Arc::clone(watched));
    spawn_reactor("one", engine, move || async move {
        let volume = Volume::new("disk", Rc::new(media), false);
        let subsystem = Subsystem::new(NQN, None, b"a test").expect("a name");
        subsystem.add(volume.handle()).expect("a free place");
        let exports = Arc::new(Exports::new());
        exports.add(subsystem).expect("a free name");
        let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
        let listener = Listener::bind(&any).expect("a port");
        let Address::Tcp(address) = listener.address() else {
            unreachable!("it was bound to one");
        };
        send.send(address).expect("the test waits");
        let _ = serve(listener, exports).await;
    })
    .expect("a reactor");
    receive.recv().expect("the target starts")
}

/// Encodes reads of one block each.
fn reads(count: u16, from: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cid in 0..count {
        let mut entry = on_blocks(READ, from + u64::from(cid), 1, 0);
        entry[2..4].copy_from_slice(&cid.to_le_bytes());
        entry[32..36].copy_from_slice(&u32::try_from(BLOCK).expect("short").to_le_bytes());
        entry[39] = 0x5a;
        bytes.extend([4, 0, 72, 0, 72, 0, 0, 0]);
        bytes.extend(entry);
    }
    bytes
}

fn answered(queue: &mut Queue, count: u16) {
    for cid in 0..count {
        let done = queue.wait(cid);
        assert_eq!((done.status, done.data.len()), (0, BLOCK));
    }
}

#[test]
fn few_commands_do_not_wait_for_many_of_another_host() {
    for engine in [Engine::Auto, Engine::Threads] {
        let watched = Arc::new(Watched::default());
        let address = target(engine, &watched);
        let identity = |host, id| Identity {
            host,
            host_id: [id; 16],
            queue_size: MANY + 1,
            ..Identity::to(NQN)
        };
        let greedy = identity("nqn.2026-11.io.forebay:greedy", 1);
        let greedy = Association::new(address, greedy, Style::default());
        let modest = identity("nqn.2026-11.io.forebay:modest", 2);
        let modest = Association::new(address, modest, Style::default());
        let (mut greedy, mut modest) = (greedy.queue(1), modest.queue(1));
        let stream = modest.stream.try_clone().expect("a descriptor");
        *watched.knock.lock().expect("sound") = Some((stream, reads(FEW, FEW_FROM)));
        greedy.say(&reads(MANY, 0));
        answered(&mut modest, FEW);
        answered(&mut greedy, MANY);
        let blocks = watched.blocks.lock().expect("sound");
        assert_eq!(blocks.len(), usize::from(MANY + FEW));
        let last = (blocks.iter()).rposition(|block| *block >= FEW_FROM);
        let last = last.expect("they were served");
        let most = TURNS * BURST + usize::from(FEW);
        assert!(
            last < most,
            "{engine:?}: the last of the few was number {last}"
        );
    }
}

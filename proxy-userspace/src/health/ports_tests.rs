use tokio::net::TcpStream;

use super::*;
use crate::health::SystemClock;
use crate::http::tests::{ask, free_address, get, is_open, try_ask, until};

/// A running task that opens ports on 127.0.0.1, with its channels.
struct Bench {
    health: Arc<Health>,
    targets: watch::Sender<Targets>,
    failures: mpsc::Receiver<Failure>,
    stop: watch::Sender<()>,
}

impl Bench {
    fn start() -> Self {
        let health = Arc::new(Health::new(SystemClock, Duration::from_secs(30)));
        health.sync(&[]);
        let (targets, wanted) = watch::channel(Targets::default());
        let (failure_sender, failures) = mpsc::channel(8);
        let (stop, stopped) = watch::channel(());
        tokio::spawn(serve_ports(wanted, health.clone(), failure_sender, stopped));
        Self { health, targets, failures, stop }
    }

    fn want(&self, checks: &[(&str, SocketAddr, usize)]) {
        let check = |(name, address, local_endpoints): &(&str, SocketAddr, usize)| {
            (service(name), HealthCheck { port: address.port(), local_endpoints: *local_endpoints })
        };
        self.targets.send_replace(Targets {
            checks: checks.iter().map(check).collect(),
            addresses: checks.iter().map(|(_, address, _)| address.ip()).collect(),
        });
    }
}

fn service(name: &str) -> ServiceKey {
    ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn expected(status: &str, count: usize, healthy: bool) -> String {
    let body = format!(
        r#"{{
	"service": {{
		"namespace": "shop",
		"name": "web"
	}},
	"localEndpoints": {count},
	"serviceProxyHealthy": {healthy}
}}"#
    );
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {count}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn a_port_answers_byte_for_byte_on_any_path_while_the_service_drains() {
    let bench = Bench::start();
    let address = free_address().await;
    bench.want(&[("web", address, 2)]);
    until(|| is_open(address)).await;
    for path in ["/", "/healthz", "/any/path?at=all"] {
        assert_eq!(get(address, path).await, expected("200 OK", 2, true), "{path}");
    }
    assert_eq!(ask(address, "POST /", "Content-Length: 0\r\n").await, expected("200 OK", 2, true));
    let head = ask(address, "HEAD /", "").await;
    let whole = expected("200 OK", 2, true);
    assert_eq!(head, whole[..whole.find("\r\n\r\n").unwrap() + 4]);

    bench.want(&[("web", address, 0)]);
    assert_eq!(get(address, "/").await, expected("503 Service Unavailable", 0, true));
    bench.want(&[("web", address, 1)]);
    bench.health.set_fault(Some("detached"));
    assert_eq!(get(address, "/").await, expected("503 Service Unavailable", 1, false));
    bench.health.set_fault(None);
    assert_eq!(get(address, "/").await, expected("200 OK", 1, true));
}

#[tokio::test]
async fn whether_the_node_may_get_new_clients_does_not_matter_here() {
    let bench = Bench::start();
    let address = free_address().await;
    bench.want(&[("web", address, 2)]);
    until(|| is_open(address)).await;
    bench.health.set_node("node-1", crate::model::Eligibility::Tainted);
    assert_eq!(get(address, "/").await, expected("200 OK", 2, true));
}

#[tokio::test]
async fn a_changed_port_closes_the_old_one_and_a_service_that_is_gone_closes_all() {
    let bench = Bench::start();
    let (old, new) = (free_address().await, free_address().await);
    bench.want(&[("web", old, 1)]);
    until(|| is_open(old)).await;
    let mut connected = TcpStream::connect(old).await.unwrap();
    bench.want(&[("web", new, 1)]);
    until(|| is_open(new)).await;
    assert!(!is_open(old).await);
    let mut byte = [0];
    let read = tokio::io::AsyncReadExt::read(&mut connected, &mut byte);
    let ended = tokio::time::timeout(Duration::from_secs(10), read).await.expect("its connections end, too");
    assert!(!matches!(ended, Ok(1)));
    assert_eq!(get(new, "/").await, expected("200 OK", 1, true));

    bench.want(&[]);
    until(async || !is_open(new).await).await;
}

#[tokio::test]
async fn a_port_goes_from_one_service_to_another() {
    let mut bench = Bench::start();
    let address = free_address().await;
    bench.want(&[("web", address, 1)]);
    until(|| is_open(address)).await;
    bench.want(&[("a", address, 3)]);
    let answer = async || try_ask(address, "GET /", "").await.unwrap_or_default();
    until(async || answer().await.contains(r#""name": "a""#)).await;
    assert!(bench.failures.try_recv().is_err());
}

#[tokio::test]
async fn a_port_opens_on_each_address_of_the_node_and_follows_them() {
    let bench = Bench::start();
    let first = free_address().await;
    let second = SocketAddr::new("127.0.0.2".parse().unwrap(), first.port());
    let checks = BTreeMap::from([(service("web"), HealthCheck { port: first.port(), local_endpoints: 1 })]);
    let on = |addresses: &[SocketAddr]| {
        let addresses = addresses.iter().map(SocketAddr::ip).collect();
        bench.targets.send_replace(Targets { checks: checks.clone(), addresses });
    };
    on(&[first, second]);
    until(async || is_open(first).await && is_open(second).await).await;
    on(&[second]);
    until(async || !is_open(first).await).await;
    assert_eq!(get(second, "/").await, expected("200 OK", 1, true));
}

#[tokio::test(start_paused = true)]
async fn a_port_in_use_is_told_once_and_opened_when_it_is_free() {
    let mut bench = Bench::start();
    let blocker = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = blocker.local_addr().unwrap();
    bench.want(&[("web", address, 1)]);
    let failure = bench.failures.recv().await.unwrap();
    assert_eq!((failure.service, failure.port), (service("web"), address.port()));
    assert_eq!(failure.error, format!("listen on {address}: Address already in use (os error 98)"));
    sleep(RETRY_INTERVAL * 5).await;
    assert!(bench.failures.try_recv().is_err(), "told already");
    drop(blocker);
    until(|| is_open(address)).await;
    tokio::time::resume();
    assert_eq!(get(address, "/").await, expected("200 OK", 1, true));
}

#[tokio::test]
async fn all_ports_close_when_the_agent_stops() {
    let bench = Bench::start();
    let address = free_address().await;
    bench.want(&[("web", address, 1)]);
    until(|| is_open(address)).await;
    drop(bench.stop);
    until(async || !is_open(address).await).await;
}

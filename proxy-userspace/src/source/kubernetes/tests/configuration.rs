//! Tests of the configuration: which server and credentials it names, and the errors of a wrong
//! one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::connect::connect;
use super::origin::Origin;
use super::*;
use crate::source::{Signs, SourceError};

/// The files of one test.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millrace-kubeconfig-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn kubeconfig(&self, server: &str, cluster: &Value, user: &Value) -> PathBuf {
        let mut cluster = cluster.clone();
        cluster["server"] = json!(server);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
            "clusters": [{ "name": "it", "cluster": cluster }],
            "users": [{ "name": "it", "user": user }],
        });
        self.write("kubeconfig", &config.to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a source for the server that a kubeconfig names.
async fn follow(kubeconfig: &Path) -> (Receiver<Batch>, JoinHandle<()>) {
    let connection = connect(Some(kubeconfig), Signs::default()).await.unwrap();
    let settings =
        KubernetesSettings { nodes: NodeParts::OfOne("node1".to_owned()), service_proxy_name: None };
    let (sender, events) = channel(64);
    let task =
        tokio::spawn(async move { follow_all::<Services>(&connection, &settings, &sender, TIMING).await });
    (events, task)
}

async fn refused(path: &Path) -> String {
    let error = connect(Some(path), Signs::default()).await.unwrap_err();
    assert!(matches!(error, SourceError::Kubeconfig { .. }));
    let line = error.to_string();
    let rest = line.strip_prefix(&format!("--kubeconfig {}: ", path.display()));
    rest.unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[tokio::test]
async fn a_kubeconfig_that_can_not_be_used_is_one_line_that_says_why() {
    let files = Files::new("wrong");
    let nowhere = files.0.join("nowhere");
    assert_eq!(
        refused(&nowhere).await,
        format!("{}: No such file or directory (os error 2)", nowhere.display())
    );
    let line = refused(&files.write("text", "- no\n- kubeconfig\n")).await;
    assert!(line.starts_with("is no kubeconfig: ") && !line.contains('\n'), "{line}");
    assert_eq!(refused(&files.write("empty", "{}")).await, "current-context is not set");
    let config = r#"{"current-context": "prod", "contexts": [{"name": "dev"}]}"#;
    assert_eq!(refused(&files.write("context", config)).await, "there is no context \"prod\"");
    let context = r#"{"name": "prod", "context": {"cluster": "moon", "user": "me"}}"#;
    let config = format!(r#"{{"current-context": "prod", "contexts": [{context}]}}"#);
    assert_eq!(refused(&files.write("cluster", &config)).await, "there is no cluster \"moon\"");
    let token = json!({ "tokenFile": "/nowhere/token" });
    let line = refused(&files.kubeconfig("http://127.0.0.1:1", &json!({}), &token)).await;
    assert!(line.contains("/nowhere/token") && line.contains("No such file"), "{line}");
}

#[test]
fn without_a_flag_the_environment_says_where_the_configuration_is() {
    let home = Files::new("home");
    let path = home.0.join(".kube/config");
    let with = |variables: &[(&str, &str)]| {
        let variables: HashMap<String, String> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Origin::of(|name| variables.get(name).cloned())
    };
    let home_variable = ("HOME", home.0.to_str().unwrap());
    assert_eq!(with(&[("KUBECONFIG", ""), home_variable]), None);
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, "").unwrap();
    assert_eq!(with(&[home_variable]), Some(Origin::Home(path)));
    let pod = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
    assert_eq!(with(&[home_variable, pod]), Some(Origin::Pod));
    let variable = Some(Origin::Variable("/a:/b".to_owned()));
    assert_eq!(with(&[home_variable, pod, ("KUBECONFIG", "/a:/b")]), variable);
    assert_eq!(
        SourceError::NoConfiguration.to_string(),
        "no API server is configured; takes --kubeconfig PATH, the environment's KUBECONFIG, \
         ~/.kube/config, or to run in a pod"
    );
}

#[tokio::test]
async fn a_token_file_that_holds_no_token_is_named() {
    let files = Files::new("no-token");
    for (text, wrong) in [("\n", "is empty; takes a token"), ("a\nb", "is no token; takes one line of ASCII")]
    {
        let user = json!({ "tokenFile": files.write("token", text) });
        let line = refused(&files.kubeconfig("http://127.0.0.1:1", &json!({}), &user)).await;
        assert_eq!(line, format!("token file {}: {wrong}", files.0.join("token").display()));
    }
}

/// Returns the first warning about a kubeconfig's server, without its consequence.
async fn first_warning(files: &Files, url: &str) -> String {
    let (mut events, task) = follow(&files.kubeconfig(url, &json!({}), &json!({}))).await;
    let told = timeout(BOUND, events.recv()).await.expect("nothing was told").unwrap();
    task.abort();
    let line = words(&told[0]);
    let line =
        line.strip_prefix(&format!("Warning: the API server at {url} ")).unwrap_or_else(|| panic!("{line}"));
    line.strip_suffix("; known objects stay in use; tried again")
        .unwrap_or_else(|| panic!("{line}"))
        .to_owned()
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_not_called_untrusted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await;
            let _ = socket.shutdown().await;
        }
    });
    let warning = first_warning(&Files::new("plain"), &url).await;
    serving.abort();
    assert_eq!(warning, "does not speak TLS: its URL begins with https://, but it may be an http:// server");
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_named() {
    let line = first_warning(&Files::new("name"), "https://nowhere.invalid:6443").await;
    // Without a DNS server the look-up takes longer than this test waits.
    let words =
        ["can't be reached: its name is not resolved: ", "can't be reached: no connection within 10 s: "];
    assert!(words.iter().any(|words| line.starts_with(words)) && !line.contains("lookup"), "{line}");
}

#[tokio::test]
async fn a_token_that_was_refused_is_read_from_its_file_again() {
    let files = Files::new("token");
    // A file that was written by hand has a line's end.
    let token = files.write("token", "first\n");
    let mut server = Server::start().await;
    let user = json!({ "tokenFile": token });
    let kubeconfig = files.kubeconfig(&format!("http://{}", server.address), &json!({}), &user);
    let (mut events, task) = follow(&kubeconfig).await;
    let request = server.asked(Kind::Node).await;
    assert_eq!(request.header("authorization"), Some("Bearer first"));
    files.write("token", "second");
    request.answer("401 Unauthorized", "", "{}").await;
    let warning = words(&events.recv().await.unwrap()[0]);
    assert!(warning.contains("rejects the agent's credentials (401 Unauthorized)"), "{warning}");
    assert_eq!(server.asked(Kind::Node).await.header("authorization"), Some("Bearer second"));
    task.abort();
}

/// Returns the first warning about a server with a certificate for `host` that is valid until
/// `year`.
///
/// The client trusts the CA with the name `trusted`; the server's has the name `it`.
async fn warning_of(host: &str, year: i32, trusted: &str) -> String {
    let authority = |name: &str| {
        let mut parameters = CertificateParams::new([]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
    };
    let (issuer, namesake) = (authority("it"), authority(trusted.trim_end_matches("'s namesake")));
    let mut parameters = CertificateParams::new([host.to_owned()]).unwrap();
    parameters.not_after = date_time_ymd(year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![certificate.der().clone()];
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let _ = acceptor.accept(socket).await;
        }
    });

    let files = Files::new(&format!("{trusted}-{host}-{year}"));
    let authority = files.write("ca", &if trusted == "it" { issuer.pem() } else { namesake.pem() });
    let kubeconfig = files.kubeconfig(&url, &json!({ "certificate-authority": authority }), &json!({}));
    let (mut events, task) = follow(&kubeconfig).await;
    let told = timeout(BOUND, events.recv()).await.expect("nothing was told").unwrap();
    task.abort();
    serving.abort();
    let line = words(&told[0]);
    let start = format!("Warning: the API server at {url} is not trusted: its certificate ");
    line.strip_prefix(&start).unwrap_or_else(|| panic!("{line}")).to_owned()
}

#[tokio::test]
async fn a_certificate_that_proves_nothing_is_named_with_what_is_wrong_with_it() {
    for trusted in ["another", "it's namesake"] {
        assert_eq!(
            warning_of("127.0.0.1", 4000, trusted).await,
            "was issued by another CA than the one in our configuration; known objects stay in use; tried again"
        );
    }
    assert_eq!(
        warning_of("127.0.0.1", 2001, "it").await,
        "has expired, or this node's clock is wrong; known objects stay in use; tried again"
    );
    assert_eq!(
        warning_of("192.0.2.1", 4000, "it").await,
        "is for another name or address; known objects stay in use; tried again"
    );
}

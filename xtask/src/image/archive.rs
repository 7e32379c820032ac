//! Images, and the archive that carries them: an OCI layout that is also an archive of Docker.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};

use super::blob::{Blob, with};
use super::layer::{Archive, File, Layer};
use super::platform::Arch;

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The configuration of an artifact, which has none.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// containerd's annotation for the full name, and OCI's for the tag.
const FULL_NAME: &str = "io.containerd.image.name";
const TAG: &str = "org.opencontainers.image.ref.name";

/// How a container of the image starts, and what the image says of itself.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The command.
    pub entry_point: Vec<String>,
    /// Its arguments, if the container names none.
    pub arguments: Vec<String>,
    /// `NAME=value`.
    pub environment: Vec<String>,
    /// Labels, which are also the manifest's annotations.
    pub labels: BTreeMap<String, String>,
    /// When the image was made, by RFC 3339.
    pub created: String,
}

/// An image for one architecture.
#[derive(Debug)]
pub struct Image {
    /// The manifest. Its digest is the image's.
    pub manifest: Blob,
    config: Blob,
    layers: Vec<Blob>,
    arch: Arch,
}

impl Image {
    /// Puts an image together.
    pub fn new(arch: Arch, config: &Config, layers: Vec<Layer>) -> Self {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
        let document = json!({
            "architecture": arch.name(),
            "os": "linux",
            "created": config.created,
            "config": {
                "User": "0",
                "Entrypoint": config.entry_point,
                "Cmd": config.arguments,
                "Env": config.environment,
                "Labels": config.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let layers: Vec<Blob> = layers.into_iter().map(|layer| layer.blob).collect();
        let blob = Blob::json(CONFIG, &document);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
            "annotations": config.labels,
        });
        Self { manifest: Blob::json(MANIFEST, &manifest), config: blob, layers, arch }
    }

    fn descriptor(&self) -> Value {
        let platform = json!({"architecture": self.arch.name(), "os": "linux"});
        with(self.manifest.descriptor(), "platform", platform)
    }
}

/// A document about an image, such as its SBOM. It names the image as its subject.
#[derive(Debug)]
pub struct Artifact {
    manifest: Blob,
    config: Blob,
    document: Blob,
    kind: &'static str,
}

impl Artifact {
    /// Attaches a document to an image.
    pub fn new(kind: &'static str, document: Vec<u8>, title: &str, subject: &Image) -> Self {
        let document = Blob::new(kind, document);
        let config = Blob::new(EMPTY, b"{}".to_vec());
        let title = json!({"org.opencontainers.image.title": title});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "config": config.descriptor(),
            "layers": [with(document.descriptor(), "annotations", title)],
            "subject": subject.manifest.descriptor(),
        });
        Self { manifest: Blob::json(MANIFEST, &manifest), config, document, kind }
    }

    fn descriptor(&self) -> Value {
        with(self.manifest.descriptor(), "artifactType", self.kind)
    }
}

/// An archive of one image, for one or several architectures.
#[derive(Debug)]
pub struct Packed {
    /// The bytes of the tar file.
    pub bytes: Vec<u8>,
    /// The digest of the image's manifest, or of the index of several.
    pub digest: String,
}

/// Packs an image for one architecture, with documents about it. It may have several names.
///
/// `ctr images import` and `skopeo` read `index.json`, `docker load` reads `manifest.json`.
pub fn pack(names: &[&str], image: &Image, artifacts: &[Artifact]) -> Result<Packed> {
    let entries =
        names.iter().map(|name| with(image.descriptor(), "annotations", annotations(name))).collect();
    let docker = json!([{
        "Config": image.config.path(),
        "RepoTags": names,
        "Layers": image.layers.iter().map(Blob::path).collect::<Vec<_>>(),
    }]);
    let digest = image.manifest.digest.clone();
    let blobs = blobs(&[image], artifacts);
    write(entries, artifacts, &blobs, Some(&docker)).map(|bytes| Packed { bytes, digest })
}

/// Packs an image for several architectures.
///
/// It has no `manifest.json`, which can't tell architectures apart.
pub fn pack_all(name: &str, images: &[&Image], artifacts: &[Artifact]) -> Result<Packed> {
    let manifests: Vec<Value> = images.iter().map(|image| image.descriptor()).collect();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let index = Blob::json(INDEX, &index);
    let named = with(index.descriptor(), "annotations", annotations(name));
    let digest = index.digest.clone();
    let mut blobs = blobs(images, artifacts);
    blobs.push(&index);
    write(vec![named], artifacts, &blobs, None).map(|bytes| Packed { bytes, digest })
}

/// Returns the full name by which a container runtime knows `name`.
pub fn full_name(name: &str) -> String {
    let is_host = |first: &str| first.contains(['.', ':']) || first == "localhost";
    match name.split_once('/') {
        Some((first, _)) if is_host(first) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

fn annotations(name: &str) -> Value {
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    json!({FULL_NAME: full_name(name), TAG: tag})
}

fn blobs<'a>(images: &[&'a Image], artifacts: &'a [Artifact]) -> Vec<&'a Blob> {
    let of_image = |image: &&'a Image| [&image.manifest, &image.config].into_iter().chain(&image.layers);
    let of_artifact = |one: &'a Artifact| [&one.manifest, &one.config, &one.document];
    images.iter().flat_map(of_image).chain(artifacts.iter().flat_map(of_artifact)).collect()
}

fn write(
    mut manifests: Vec<Value>,
    artifacts: &[Artifact],
    blobs: &[&Blob],
    docker: Option<&Value>,
) -> Result<Vec<u8>> {
    manifests.extend(artifacts.iter().map(Artifact::descriptor));
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    let text = |document: &Value| document.to_string().into_bytes();
    let mut files: BTreeMap<String, &[u8]> =
        blobs.iter().map(|blob| (blob.path(), blob.bytes.as_slice())).collect();
    let layout = text(&json!({"imageLayoutVersion": "1.0.0"}));
    let index = text(&index);
    let docker = docker.map(text);
    files.insert("oci-layout".to_owned(), &layout);
    files.insert("index.json".to_owned(), &index);
    if let Some(docker) = &docker {
        files.insert("manifest.json".to_owned(), docker);
    }
    let mut archive = Archive::default();
    for (path, bytes) in files {
        archive.add_parents(&path)?;
        archive.add(&path, &File::Data(bytes.to_vec()))?;
    }
    archive.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Command;
    use std::{env, fs, process};

    use super::super::blob;
    use super::*;

    fn image(arch: Arch) -> Image {
        let program = File::Program(arch.name().as_bytes().to_vec());
        let layer = Layer::pack(&BTreeMap::from([("bin/millrace".to_owned(), program)])).unwrap();
        let labels = BTreeMap::from([("org.opencontainers.image.version".to_owned(), "0.1.0".to_owned())]);
        let config = Config {
            entry_point: vec!["millrace".to_owned()],
            labels,
            created: "1970-01-01T00:00:00Z".to_owned(),
            ..Config::default()
        };
        Image::new(arch, &config, vec![layer])
    }

    fn packed() -> Packed {
        let image = image(Arch::Amd64);
        let sbom = Artifact::new("application/vnd.cyclonedx+json", b"{\"a\":1}".to_vec(), "sbom", &image);
        pack(&["millrace:0.1.0"], &image, &[sbom]).unwrap()
    }

    /// Returns the files of an archive. Each blob must be what its name says.
    fn unpack(bytes: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(bytes).entries().unwrap() {
            let mut entry = entry.unwrap();
            // A time would not show in the comparison of two archives of the same second.
            let header = entry.header();
            assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if entry.header().entry_type().is_file() {
                if let Some(name) = path.strip_prefix("blobs/sha256/") {
                    assert_eq!(blob::digest(&content), format!("sha256:{name}"));
                }
                files.insert(path, content);
            }
        }
        files
    }

    fn document(files: &BTreeMap<String, Vec<u8>>, path: &str) -> Value {
        serde_json::from_slice(&files[path]).unwrap()
    }

    /// Returns what a descriptor refers to. Its size must be right.
    fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
        let digest = descriptor["digest"].as_str().unwrap();
        let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
        assert_eq!(descriptor["size"], content.len());
        content
    }

    #[test]
    fn the_same_image_gives_the_same_archive() {
        assert_eq!(packed().bytes, packed().bytes);
        assert_eq!(packed().digest, packed().digest);
    }

    #[test]
    fn an_archive_leads_from_the_index_to_the_layers() {
        let packed = packed();
        let files = unpack(&packed.bytes);
        assert_eq!(document(&files, "oci-layout")["imageLayoutVersion"], "1.0.0");
        let index = document(&files, "index.json");
        let named = &index["manifests"][0];
        assert_eq!(named["digest"], packed.digest);
        assert_eq!(named["annotations"][FULL_NAME], "docker.io/library/millrace:0.1.0");
        assert_eq!(named["annotations"][TAG], "0.1.0");
        let manifest: Value = serde_json::from_slice(follow(&files, named)).unwrap();
        let config: Value = serde_json::from_slice(follow(&files, &manifest["config"])).unwrap();
        let mut layer = Vec::new();
        let compressed = follow(&files, &manifest["layers"][0]);
        flate2::read::GzDecoder::new(compressed).read_to_end(&mut layer).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"], json!([blob::digest(&layer)]));
        assert_eq!(config["architecture"], "amd64");
        assert_eq!(config["config"]["Labels"], manifest["annotations"]);
    }

    #[test]
    fn dockers_manifest_refers_to_the_same_blobs() {
        let files = unpack(&packed().bytes);
        let docker = document(&files, "manifest.json");
        let index = document(&files, "index.json");
        let manifest: Value = serde_json::from_slice(follow(&files, &index["manifests"][0])).unwrap();
        let path =
            |descriptor: &Value| descriptor["digest"].as_str().unwrap().replace("sha256:", "blobs/sha256/");
        assert_eq!(docker[0]["RepoTags"], json!(["millrace:0.1.0"]));
        assert_eq!(docker[0]["Config"], path(&manifest["config"]));
        assert_eq!(docker[0]["Layers"], json!([path(&manifest["layers"][0])]));
    }

    #[test]
    fn skopeo_reads_an_archive_with_a_document_in_both_forms() {
        let packed = packed();
        let path = env::temp_dir().join(format!("millrace-archive-{}.tar", process::id()));
        fs::write(&path, &packed.bytes).unwrap();
        let inspect = |form: &str, name: &str| {
            let place = format!("{form}:{}:{name}", path.display());
            let output = Command::new("skopeo").args(["inspect", &place]).output().unwrap();
            assert!(output.status.success(), "{form}: {}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        };
        let (oci, docker) = (inspect("oci-archive", "0.1.0"), inspect("docker-archive", "millrace:0.1.0"));
        fs::remove_file(&path).unwrap();
        // The archive of Docker has no manifest of ours, so skopeo makes one.
        assert_eq!(oci["Digest"], packed.digest);
        for read in [oci, docker] {
            assert_eq!(read["Labels"]["org.opencontainers.image.version"], "0.1.0");
            assert_eq!((&read["Architecture"], &read["Os"]), (&json!("amd64"), &json!("linux")));
        }
    }

    #[test]
    fn a_document_names_its_image_as_its_subject() {
        let packed = packed();
        let files = unpack(&packed.bytes);
        let index = document(&files, "index.json");
        let artifact: Value = serde_json::from_slice(follow(&files, &index["manifests"][1])).unwrap();
        assert_eq!(artifact["subject"]["digest"], packed.digest);
        assert_eq!(artifact["artifactType"], index["manifests"][1]["artifactType"]);
        assert_eq!(follow(&files, &artifact["layers"][0]), b"{\"a\":1}");
        assert_eq!(follow(&files, &artifact["config"]), b"{}");
    }

    #[test]
    fn an_archive_of_two_architectures_has_one_name() {
        let images = Arch::ALL.map(image);
        let packed = pack_all("millrace:0.1.0", &images.each_ref(), &[]).unwrap();
        let files = unpack(&packed.bytes);
        assert!(!files.contains_key("manifest.json"));
        let outer = document(&files, "index.json");
        assert_eq!(outer["manifests"][0]["digest"], packed.digest);
        let index: Value = serde_json::from_slice(follow(&files, &outer["manifests"][0])).unwrap();
        for (image, listed) in images.iter().zip(index["manifests"].as_array().unwrap()) {
            assert_eq!(listed["platform"]["architecture"], image.arch.name());
            assert_eq!(follow(&files, listed), image.manifest.bytes);
        }
    }

    #[test]
    fn a_short_name_is_one_of_docker_hub() {
        assert_eq!(full_name("millrace:0.1.0"), "docker.io/library/millrace:0.1.0");
        assert_eq!(full_name("someone/millrace:1"), "docker.io/someone/millrace:1");
        assert_eq!(full_name("localhost/millrace:1"), "localhost/millrace:1");
        assert_eq!(full_name("registry.example.com:5000/millrace:1"), "registry.example.com:5000/millrace:1");
    }
}

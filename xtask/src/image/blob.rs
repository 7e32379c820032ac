//! Content that is named by its SHA-256 digest.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A part of an image: a layer, a configuration, a manifest or an index.
#[derive(Clone, Debug)]
pub struct Blob {
    /// `sha256:` and 64 digits.
    pub digest: String,
    /// What the bytes are, such as `application/vnd.oci.image.manifest.v1+json`.
    pub media_type: &'static str,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Blob {
    /// Returns a blob of these bytes.
    pub fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { digest: digest(&bytes), media_type, bytes }
    }

    /// Returns a blob with a JSON document, whose keys are sorted.
    pub fn json(media_type: &'static str, document: &Value) -> Self {
        Self::new(media_type, document.to_string().into_bytes())
    }

    /// Returns the JSON object by which other documents refer to the blob.
    pub fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len()})
    }

    /// Returns the path in the archive.
    pub fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

/// Returns the digest of bytes, as image documents write it.
pub fn digest(bytes: &[u8]) -> String {
    let sum = Sha256::digest(bytes);
    sum.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Returns a JSON object with one more field.
pub fn with(mut object: Value, field: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value.into());
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha256_of_the_content() {
        // The first example of FIPS 180-2, appendix B.
        let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let blob = Blob::new("text/plain", b"abc".to_vec());
        assert_eq!(blob.digest, expected);
        assert_eq!(blob.descriptor()["size"], 3);
        assert_eq!(blob.path(), expected.replace("sha256:", "blobs/sha256/"));
    }
}

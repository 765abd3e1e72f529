//! TLS of the links: a certificate authority of the cluster's own, and certificates demanded of both ends.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

#[cfg(test)]
pub(crate) mod tests;

/// What both ends of a link need for TLS. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    accept: TlsAcceptor,
    connect: TlsConnector,
    server_name: Option<ServerName<'static>>,
}

/// TLS that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM file of the right kind.
    #[error("{option} `{}`: {why}", path.display())]
    File {
        /// The option that names the file.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// `tls-server-name` is neither a host name nor an address.
    #[error("tls-server-name `{0}` is neither a host name nor an IP address")]
    ServerName(String),
    /// The parts do not make a configuration.
    #[error("tls: {0}")]
    Setup(String),
}

impl Tls {
    /// TLS with the certificate authority `ca`, and the node's own certificate chain `cert` and key `key`; all PEM files.
    /// The chain serves both as server and as client certificate. A dialled peer has to have a certificate for the host
    /// of the address dialled, or for `server_name` where that is given.
    ///
    /// # Errors
    /// A file is missing or not what it should be, key and certificate do not belong together, or `server_name` is no name.
    pub fn load(ca: &Path, cert: &Path, key: &Path, server_name: Option<&str>) -> Result<Self, TlsError> {
        let provider = provider();
        let mut roots = RootCertStore::empty();
        for root in certificates("tls-ca", ca)? {
            roots.add(root).map_err(|e| file("tls-ca", ca, e))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates("tls-cert", cert)?;
        let key_der = PrivateKeyDer::from_pem_file(key).map_err(|e| file("tls-key", key, pem_text(&e)))?;

        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| TlsError::Setup(e.to_string()))?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsError::Setup(e.to_string()))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key_der.clone_key())
            .map_err(|e| {
                file("tls-key", key, format!("does not go with tls-cert `{}`: {e}", cert.display()))
            })?;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|e| TlsError::Setup(e.to_string()))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| TlsError::Setup(e.to_string()))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, key_der)
            .map_err(|e| file("tls-key", key, e))?;
        Ok(Self {
            accept: TlsAcceptor::from(Arc::new(server)),
            connect: TlsConnector::from(Arc::new(client)),
            server_name: server_name
                .map(|name| {
                    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))
                })
                .transpose()?,
        })
    }

    /// The accepting end.
    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.accept
    }

    /// The dialling end.
    pub(crate) fn connector(&self) -> &TlsConnector {
        &self.connect
    }

    /// The name that the certificate of a peer dialled at `host` has to have.
    ///
    /// # Errors
    /// `host` is neither a host name nor an address.
    pub(crate) fn name_for(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => ServerName::try_from(host.to_owned()).map_err(|_| TlsError::ServerName(host.to_owned())),
        }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// A server that completes no handshake with anybody: it has no certificate to show.
///
/// # Errors
/// The crypto provider has no usable protocol version.
pub(crate) fn refuse_all() -> Result<TlsAcceptor, TlsError> {
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TlsError::Setup(e.to_string()))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(NoCertificate));
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// Named here and handed to every builder: dependencies compile two providers in, so that rustls has no default.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let list = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| file(option, path, pem_text(&e)))?;
    if list.is_empty() {
        return Err(file(option, path, "holds no certificate in PEM form"));
    }
    Ok(list)
}

fn pem_text(error: &pem::Error) -> String {
    match error {
        pem::Error::NoItemsFound => "holds no private key in PEM form".to_owned(),
        pem::Error::Io(e) => e.to_string(),
        other => other.to_string(),
    }
}

fn file(option: &'static str, path: &Path, why: impl fmt::Display) -> TlsError {
    TlsError::File { option, path: path.to_owned(), why: why.to_string() }
}

//! Certificates for the tests of TLS.

use integration_tests::Folder;

/// Two certificate authorities, and certificates of each, as files: `ca.pem`, `ca-server.pem`, `ca-server.key`, `ca-client…`, and the same for
/// `stranger`; and `ca-expired…`, a server's certificate that was good until the year 2020.
pub(crate) fn write(folder: &Folder) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    for authority in ["ca", "stranger"] {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("a CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, authority);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("a CA");
        std::fs::write(folder.file(&format!("{authority}.pem")), ca.pem()).expect("a file");
        for name in ["server", "client", "expired"] {
            let names = ["localhost", "127.0.0.1", "shop.test"].map(str::to_owned);
            let key = KeyPair::generate().expect("a key");
            let mut params = CertificateParams::new(names.to_vec()).expect("names");
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, name);
            if name == "expired" {
                params.not_before = rcgen::date_time_ymd(2019, 1, 1);
                params.not_after = rcgen::date_time_ymd(2020, 1, 1);
            }
            let certificate = params.signed_by(&key, &ca).expect("a signature");
            let file = |end: &str| folder.file(&format!("{authority}-{name}.{end}"));
            std::fs::write(file("pem"), certificate.pem()).expect("a file");
            std::fs::write(file("key"), key.serialize_pem()).expect("a file");
        }
    }
}

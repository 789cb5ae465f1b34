//! Questions that servers answer in plain text to whoever connects.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(2);
/// Far more than an answer has.
const LONGEST: u64 = 4 << 20;

/// Sends the words and reads until the server hangs up; `None` when there is no answer.
pub(crate) async fn ask(address: (&str, u16), words: &str) -> Option<String> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(words.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(PATIENCE, talk).await.ok()?.ok()
}

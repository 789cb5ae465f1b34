//! What a server has done so far, by its own counters. To read some of them is a request too: whoever counts exactly reads twice, and takes off what one reading costs.

use async_trait::async_trait;
use dlock_bench::{Counters, Meter};

use crate::server::{redis_value, wire};
use crate::{EtcdServer, MySqlServer, PostgresServer, RedisServer, Result, ZooKeeperServer};

/// Sums the numbers at the ends of the lines that begin with one of these words.
fn sum(text: &str, starts: &[&str]) -> f64 {
    let lines = text
        .lines()
        .filter(|line| starts.iter().any(|start| line.starts_with(start)));
    lines
        .filter_map(|line| line.split_whitespace().next_back()?.parse::<f64>().ok())
        .sum()
}

/// Requests that clients sent, and the commands that scripts called inside them, without those that only ask for this.
async fn redis_commands(server: &RedisServer) -> Result<f64> {
    let stats = server.command(&["INFO", "commandstats"]).await?;
    let stats = stats.text().unwrap_or_default();
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        if ["info", "config", "hello", "client"]
            .iter()
            .any(|own| command.starts_with(own))
        {
            return None;
        }
        rest.split(',').next()?.parse::<f64>().ok()
    });
    Ok(calls.sum())
}

#[async_trait]
impl Meter for RedisServer {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        let stats = self.command(&["INFO", "stats"]).await?;
        let stats = stats.text().unwrap_or_default();
        let value = |key: &str| redis_value(&stats, key)?.parse::<f64>().ok();
        let bytes = value("total_net_input_bytes").zip(value("total_net_output_bytes"));
        Ok(Counters {
            commands: Some(redis_commands(self).await?),
            bytes: bytes.map(|(came, went)| came + went),
            cpu: Counters::cpu_of(self.pid()),
        })
    }
}

#[async_trait]
impl Meter for EtcdServer {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        let text = wire::ask(self.addr(), "GET /metrics HTTP/1.0\r\n\r\n").await?;
        // A stream counts once, when it begins; what goes through it counts as messages.
        let messages = ["grpc_server_msg_received_total{"];
        let bytes = [
            "etcd_network_client_grpc_received_bytes_total",
            "etcd_network_client_grpc_sent_bytes_total",
        ];
        Ok(Counters {
            commands: Some(sum(&text, &messages)),
            bytes: Some(sum(&text, &bytes)),
            cpu: Counters::cpu_of(self.pid()),
        })
    }
}

#[async_trait]
impl Meter for ZooKeeperServer {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        let text = self.four_letter_word("mntr").await?;
        Ok(Counters {
            commands: Some(sum(&text, &["zk_packets_received"])),
            bytes: None,
            cpu: Counters::cpu_of(self.pid()),
        })
    }
}

#[async_trait]
impl Meter for MySqlServer {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        let sql = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Questions', 'Bytes_received', 'Bytes_sent')";
        let text = self.sql(sql).await?;
        Ok(Counters {
            commands: Some(sum(&text, &["Questions"])),
            bytes: Some(sum(&text, &["Bytes_received", "Bytes_sent"])),
            cpu: Counters::cpu_of(self.pid()),
        })
    }
}

#[async_trait]
impl Meter for PostgresServer {
    async fn read(&self) -> dlock_bench::Result<Counters> {
        // Where each statement that a client sends is logged; that costs too much for figures of time.
        let is_logged = self
            .settings()
            .set
            .iter()
            .any(|set| set == "log_statement=all");
        Ok(Counters {
            commands: is_logged.then(|| statements(&self.log()) as f64),
            bytes: None,
            cpu: Counters::cpu_of(self.pid()),
        })
    }
}

fn statements(log: &str) -> usize {
    let asked = |line: &&str| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ");
    log.lines().filter(asked).count()
}

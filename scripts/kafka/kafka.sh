#!/usr/bin/env bash
# A real Apache Kafka for tests, from Maven's artifacts: KRaft, broker and controller in one JVM. Needs Java 17 and Maven.
#
#   kafka.sh fetch                      copy the broker's jars into the cache (45 MB); free when they are there
#   kafka.sh start DATA [PORT]          one node; a new DATA is formatted, an old one goes on where it was
#   kafka.sh start-cluster DATA [N]     N nodes (3) in DATA/1, DATA/2, ...
#   kafka.sh stop DATA                  SIGTERM, and SIGKILL after 30 s; a node or a whole cluster
#   kafka.sh kill DATA                  SIGKILL now: a crash
#   kafka.sh wipe DATA                  kill, and remove the folder
#   kafka.sh status DATA                is it running?
#   kafka.sh with COMMAND...            fetch, start one in a new folder, run COMMAND with SEMEL_TEST_KAFKA set, wipe
#   kafka.sh with-cluster COMMAND...    the same with three nodes, whose folder is SEMEL_TEST_KAFKA_CLUSTER
#
# The node of `with` has a second listener, behind TLS and SASL (user semel, password secret, PLAIN and SCRAM):
# SEMEL_TEST_KAFKA_SECURE is its address, SEMEL_TEST_KAFKA_CA the file of its certificate.
#
# start and start-cluster print the addresses on stdout, all else goes to stderr. Without PORT a node takes a free one
# and keeps it for good; its controller listens one above. One node of a cluster: kill DATA/2, then start DATA/2.
#
# Environment: SEMEL_CACHE (folder of jars and of `with`, default .cache), KAFKA_HEAP (512m),
# KAFKA_PROPERTIES (lines added to a new node's server.properties).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SEMEL_CACHE:-$(cd "$here/../.." && pwd)/.cache}
jars=$cache/kafka/jars

say() { echo "kafka: $*" >&2; }
fail() {
	say "$*"
	exit 1
}

need_java() {
	java=${JAVA_HOME:+$JAVA_HOME/bin/}java
	command -v "$java" >/dev/null || fail "no Java. 'make setup' brings it, or: apt-get install default-jre-headless, dnf install java-headless, brew install openjdk"
	local version
	version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
	((${version:-0} >= 17)) || fail "Java ${version:-of unknown version} at $(command -v "$java"); Kafka wants 17 or later"
}

fetch() {
	need_java
	command -v mvn >/dev/null || fail "no Maven. 'make setup' brings it, or: apt-get install maven, dnf install maven, brew install maven"
	if cmp -s "$here/pom.xml" "$jars/pom.xml"; then return; fi
	say "fetching Apache Kafka's jars through Maven, about 45 MB, into $jars"
	rm -rf "$jars" "$jars.new"
	mkdir -p "$jars.new"
	# -C: a jar whose checksum is wrong is an error
	mvn -B -q -C -f "$here/pom.xml" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$jars.new" >"$jars.new/log" 2>&1 ||
		fail "Maven could not fetch Kafka: $(cat "$jars.new/log")"
	[[ -n $(find "$jars.new" -name 'kafka_*.jar') ]] || fail "Maven fetched no broker: $(cat "$jars.new/log")"
	cp "$here/pom.xml" "$jars.new/"
	mv "$jars.new" "$jars"
}

# listens PORT: does anything?
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port prints one that is free together with the next. Below 32768, where no outgoing connection takes it.
free_port() {
	local p try
	for try in {1..50}; do
		p=$((20000 + 2 * ((RANDOM * 32768 + RANDOM) % 6000)))
		if ! listens "$p" && ! listens $((p + 1)); then
			echo "$p"
			return
		fi
	done
	fail "no free port in $try tries"
}

# known_brokers PORT: how many brokers the node there knows to be alive: its answer to Metadata, version 0. 0: no answer.
known_brokers() {
	local request='\0\0\0\016\0\003\0\0\0\0\0\001\377\377\0\0\0\0' answer
	# The answer begins with length, correlation ID, number of brokers, 4 bytes each.
	answer=$( (
		exec 3<>"/dev/tcp/127.0.0.1/$1"
		printf "$request" >&3
		timeout 3 head -c 12 <&3 | od -An -v -tu1
	) 2>/dev/null) || true
	set -- $answer
	echo "${12:-0}"
}

# pid_of NODE prints the process that runs the node, if one does.
pid_of() {
	local pid command
	pid=$(cat "$1/pid" 2>/dev/null) || return 1
	if [[ -d /proc/self ]]; then
		command=$(tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline") || return 1
	else
		command=$(ps -ww -o command= -p "$pid") || return 1
	fi
	[[ $command == *"-Dsemel.node=$1"* ]] && echo "$pid"
}

# secure NODE gives a node that isn't configured yet a listener behind TLS and SASL, with a certificate of its own.
secure() {
	local keytool=${java%java}keytool port
	command -v "$keytool" >/dev/null || fail "no keytool, which comes with Java, beside $java"
	until port=$(free_port) && ((port != $(cat "$1/port"))); do :; done
	echo "$port" >"$1/secure-port"
	{
		"$keytool" -genkeypair -keystore "$1/secure.p12" -storetype PKCS12 -storepass secret -alias node -keyalg EC \
			-groupname secp256r1 -dname CN=kafka-for-tests -ext SAN=ip:127.0.0.1 -ext bc=ca:true -validity 30 &&
			"$keytool" -exportcert -rfc -keystore "$1/secure.p12" -storepass secret -alias node -file "$1/ca.pem"
	} >"$1/keytool.log" 2>&1 || fail "no certificate: $(cat "$1/keytool.log")"
}

# configure NODE ID VOTERS COPIES writes a new node's server.properties.
configure() {
	local port in_sync=1
	port=$(cat "$1/port")
	(($4 == 1)) || in_sync=2
	cat >"$1/server.properties" <<-P
		node.id=$2
		process.roles=broker,controller
		controller.quorum.voters=$3
		controller.listener.names=CONTROLLER
		listeners=CLIENT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
		advertised.listeners=CLIENT://127.0.0.1:$port
		inter.broker.listener.name=CLIENT
		listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
		log.dirs=$1/log

		# Topics are made on purpose, and as safe as the number of nodes allows.
		auto.create.topics.enable=false
		default.replication.factor=$4
		min.insync.replicas=$in_sync
		offsets.topic.replication.factor=$4
		transaction.state.log.replication.factor=$4
		transaction.state.log.min.isr=$in_sync
		share.coordinator.state.topic.replication.factor=$4
		share.coordinator.state.topic.min.isr=$in_sync

		# So that tests are short: few inner partitions, no wait for more members, short sessions, retention at once.
		# A killed node can't come back before its old session has ended.
		offsets.topic.num.partitions=4
		transaction.state.log.num.partitions=4
		share.coordinator.state.topic.num.partitions=4
		group.initial.rebalance.delay.ms=0
		group.min.session.timeout.ms=500
		broker.session.timeout.ms=3000
		broker.heartbeat.interval.ms=500
		log.initial.task.delay.ms=1000
		log.retention.check.interval.ms=1000
		${KAFKA_PROPERTIES:-}
	P
	[[ -f $1/secure-port ]] || return 0
	sed -i.plain -e "/^\(advertised\.\)\{0,1\}listeners=/s|$|,SECURE://127.0.0.1:$(cat "$1/secure-port")|" \
		-e '/^listener.security.protocol.map=/s/$/,SECURE:SASL_SSL/' "$1/server.properties"
	cat >>"$1/server.properties" <<-P
		sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
		listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_semel="secret";
		listener.name.secure.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
		listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
		listener.name.secure.ssl.keystore.type=PKCS12
		listener.name.secure.ssl.keystore.location=$1/secure.p12
		listener.name.secure.ssl.keystore.password=secret
	P
}

# launch NODE starts its JVM and doesn't wait.
launch() {
	local port p mechanism users=()
	port=$(cat "$1/port")
	if pid_of "$1" >/dev/null; then fail "runs already: $1"; fi
	for p in "$port" $((port + 1)); do
		if listens "$p"; then fail "port $p is taken"; fi
	done
	if [[ ! -f $1/log/meta.properties ]]; then
		if [[ -f $1/secure-port ]]; then
			for mechanism in SCRAM-SHA-256 SCRAM-SHA-512; do
				users+=(--add-scram "$mechanism=[name=semel,password=secret]")
			done
		fi
		"$java" -Xmx128m -XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$jars/*" \
			kafka.tools.StorageTool format -c "$1/server.properties" -t "$(cat "$1/cluster")" ${users[@]+"${users[@]}"} >"$1/format.log" 2>&1 ||
			fail "formatting failed: $(cat "$1/format.log")"
	fi
	# A background job of a script ignores Ctrl-C: whoever started the node stops it.
	"$java" -Xmx"${KAFKA_HEAP:-512m}" -XX:+ExitOnOutOfMemoryError -Dsemel.node="$1" \
		-Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$jars/*" \
		kafka.Kafka "$1/server.properties" </dev/null >>"$1/server.log" 2>&1 &
	echo $! >"$1/pid"
}

# await NODE N waits until the node answers clients and knows N live brokers.
await() {
	local deadline=$((SECONDS + 300)) port
	port=$(cat "$1/port")
	until (($(known_brokers "$port") >= $2)); do
		pid_of "$1" >/dev/null || fail "the node ended: $(tail -n 20 "$1/server.log")"
		((SECONDS < deadline)) || fail "not ready in time: $(tail -n 20 "$1/server.log")"
		sleep 0.1
	done
}

new_folder() {
	mkdir -p "$1"
	(cd "$1" && pwd -P)
}

new_cluster_id() { head -c 16 /dev/urandom | base64 | tr '+/' 'xy' | cut -c 1-22; }

start() {
	need_java
	[[ -d $jars ]] || fail "no jars: kafka.sh fetch"
	local node
	node=$(new_folder "$1")
	if [[ ! -f $node/server.properties ]]; then
		echo "${2:-$(free_port)}" >"$node/port"
		new_cluster_id >"$node/cluster"
		if [[ -n ${3:-} ]]; then secure "$node"; fi
		configure "$node" 1 "1@127.0.0.1:$(($(cat "$node/port") + 1))" 1
	fi
	launch "$node"
	await "$node" 1
	say "pid $(cat "$node/pid") in $node"
	echo "127.0.0.1:$(cat "$node/port")"
}

start_cluster() {
	need_java
	[[ -d $jars ]] || fail "no jars: kafka.sh fetch"
	local data n=${2:-3} i voters="" addresses="" id
	data=$(new_folder "$1")
	if [[ ! -d $data/1 ]]; then
		id=$(new_cluster_id)
		for ((i = 1; i <= n; i++)); do
			mkdir -p "$data/$i"
			echo "$id" >"$data/$i/cluster"
			free_port >"$data/$i/port"
			voters+="${voters:+,}$i@127.0.0.1:$(($(cat "$data/$i/port") + 1))"
		done
		for ((i = 1; i <= n; i++)); do configure "$data/$i" "$i" "$voters" "$n"; done
	fi
	for ((i = 1; i <= n; i++)); do launch "$data/$i"; done
	for ((i = 1; i <= n; i++)); do
		await "$data/$i" "$n"
		addresses+="${addresses:+,}127.0.0.1:$(cat "$data/$i/port")"
	done
	say "$n nodes in $data"
	echo "$addresses"
}

# end NODE SIGNAL returns when the node is gone.
end() {
	local pid deadline=$((SECONDS + 30))
	pid=$(pid_of "$1") || return 0
	kill -"$2" "$pid"
	while pid_of "$1" >/dev/null; do
		if ((SECONDS > deadline)); then kill -KILL "$pid"; fi
		sleep 0.1
	done
	rm -f "$1/pid"
}

# end_all DATA SIGNAL: its nodes at once, as a last one alone has no quorum and would wait for it.
end_all() {
	local data node
	data=$(cd "$1" 2>/dev/null && pwd -P) || return 0
	for node in "$data" "$data"/[0-9]*; do
		if [[ -f $node/server.properties ]]; then end "$node" "$2" & fi
	done
	wait
}

status() {
	local data node up=0
	data=$(cd "$1" 2>/dev/null && pwd -P) || fail "no such folder: $1"
	for node in "$data" "$data"/[0-9]*; do
		[[ -f $node/server.properties ]] || continue
		if pid_of "$node" >/dev/null; then
			echo "$node: pid $(cat "$node/pid"), 127.0.0.1:$(cat "$node/port")"
		else
			echo "$node: not running"
			up=1
		fi
	done
	return $up
}

# new_data names a folder for one run, which is wiped when the script ends.
new_data() {
	fetch
	mkdir -p "$cache/kafka"
	local old
	for old in "$cache"/kafka/with-*; do # of runs that were killed
		if [[ -d $old ]] && ! kill -0 "${old##*-}" 2>/dev/null; then wipe "$old"; fi
	done
	data=$cache/kafka/with-$$
	trap 'wipe "$cache/kafka/with-$$"' EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
}

with_cluster() {
	new_data
	# Three nodes on a busy machine: one that is only slow must not be taken for dead.
	KAFKA_PROPERTIES+=$'\nbroker.session.timeout.ms=9000\nbroker.heartbeat.interval.ms=2000'
	SEMEL_TEST_KAFKA=$(start_cluster "$data")
	SEMEL_TEST_KAFKA_CLUSTER=$data
	export SEMEL_TEST_KAFKA SEMEL_TEST_KAFKA_CLUSTER
	say "SEMEL_TEST_KAFKA=$SEMEL_TEST_KAFKA"
	"$@"
}

with() {
	new_data
	SEMEL_TEST_KAFKA=$(start "$data" "" secure)
	SEMEL_TEST_KAFKA_SECURE=127.0.0.1:$(cat "$data/secure-port")
	SEMEL_TEST_KAFKA_CA=$data/ca.pem
	export SEMEL_TEST_KAFKA SEMEL_TEST_KAFKA_SECURE SEMEL_TEST_KAFKA_CA
	say "SEMEL_TEST_KAFKA=$SEMEL_TEST_KAFKA"
	"$@"
}

wipe() {
	end_all "$1" KILL
	rm -rf "$1"
}

case ${1:-} in
fetch) fetch ;;
start) start "${2:?DATA}" "${3:-}" ;;
start-cluster) start_cluster "${2:?DATA}" "${3:-}" ;;
stop) end_all "${2:?DATA}" TERM ;;
kill) end_all "${2:?DATA}" KILL ;;
wipe) wipe "${2:?DATA}" ;;
status) status "${2:?DATA}" ;;
with)
	shift
	with "${@:?COMMAND}"
	;;
with-cluster)
	shift
	with_cluster "${@:?COMMAND}"
	;;
*)
	sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}" >&2
	exit 2
	;;
esac

package mutants

const (
	sinks       = "./sink"
	debezium    = "sink/debezium.go"
	mapping     = "sink/mapping.go"
	encodeTimes = "postgres/encode_time.go"
)

// formats are the guards between a message and its values.
var formats = []mutant{
	{
		guard: "postgres: a source's place outlives the process",
		edits: []edit{{"postgres/table_source.go", `	return string(marshal(p))`, `	return nil`}},
		pkg:   "./internal/cases", tests: []string{"TestASourceThatBeganAnewWhileNobodyRanIsNoticed"},
	},
	{
		guard: "postgres: a source's place of messages that are read again is none",
		edits: []edit{{"postgres/table_source.go", `err != nil || p.Offset >= next`, `err != nil`}},
		pkg:   "./internal/cases", tests: []string{"TestATopicThatIsReadAgainComparesFromItsBeginning"},
	},
	{
		guard: "decode: an outage is no verdict about messages",
		edits: []edit{{settle, `if err == nil && it.Err != nil {`, `if false {`}},
		tests: []string{"TestOutageWhileMessagesAreReadBuriesNothing"},
	},
	{
		guard: "redrive: an outage is no verdict about a letter",
		edits: []edit{{"inbox/redrive.go", `if err := outageOf(it); err != nil {`, `if err := outageOf(it); false {`}},
		tests: []string{"TestOutageWhileALetterIsReadLeavesItMarked"},
	},
	{
		guard: "registry: only its own code says that a schema is unknown",
		edits: []edit{{"registry/registry.go", `return ErrUnknown
		}
	}
	return r.outage(err)`, `return ErrUnknown
		}
		if e.StatusCode == http.StatusNotFound {
			return ErrUnknown
		}
	}
	return r.outage(err)`}},
		pkg: "./registry", tests: []string{"TestARegistryThatCannotBeUsedIsAnOutage"},
	},
	{
		guard: "registry: a schema is asked for once",
		edits: []edit{{"registry/decoder.go", `	d.known.Store(id, k)
`, ``}},
		pkg: "./registry", tests: []string{"TestASchemaIsAskedForOnce"},
	},
	{
		guard: "registry: an outage is not asked about for each message",
		edits: []edit{{"registry/decoder.go", `if d.down != nil && now.Sub`, `if false && now.Sub`}},
		pkg:   "./registry", tests: []string{"TestAnOutageIsNotAskedAboutForEachMessage"},
	},
	{
		guard: "avro: values nest only so deep",
		edits: []edit{{"sink/avro/json.go", `if r.depth++; r.depth > exact.MaxDepth {`, `if r.depth++; false {`}},
		pkg:   "./sink/avro", tests: []string{"TestFewBytesClaimLittle"},
	},
	{
		guard: "protobuf: setting a field of a oneof takes the others back",
		edits: []edit{{"sink/protobuf/json.go", `if f.oneof >= 0 {`, `if false {`}},
		pkg:   "./sink/protobuf", tests: []string{"TestAnyMessageIsReadAsTheLibraryReadsIt"},
	},
	{
		guard: "debezium: the tombstone after a delete is skipped",
		edits: []edit{{debezium, `o.Skip = "the tombstone after a delete"`, `o.Skip = ""`}},
		pkg:   sinks, tests: []string{"TestDebeziumSkipsWhatChangesNoRowAndRefusesATruncate"},
	},
	{
		guard: "debezium: a truncate is refused",
		edits: []edit{{debezium, `case "m":`, `case "m", "t":`}, {debezium, `case "t":`, `case "truncate":`}},
		pkg:   sinks, tests: []string{"TestDebeziumSkipsWhatChangesNoRowAndRefusesATruncate"},
	},
	{
		guard: "debezium: the stand-in for a value that was not sent is no value",
		edits: []edit{{debezium, `if missing && isUnavailable(value) {`, `if false {`}},
		pkg:   sinks, tests: []string{"TestAnUnsentValueIsNotWritten"},
	},
	{
		guard: "debezium: what was not sent is refused, unless what is stored is kept",
		edits: []edit{{mapping, `range o.unavailable {`, `range o.unavailable[:0] {`}},
		pkg:   sinks, tests: []string{"TestAnUnsentValueIsNotWritten"},
	},
	{
		guard: "debezium: a place that falls with the source's clock is no new source",
		edits: []edit{{"postgres/table_source.go", ` && c.Millis > was.Millis {`, ` {`}},
		pkg:   "./internal/cases", tests: []string{"TestWhatAKilledConnectorSendsAgainIsNoNewSource"},
	},
	{
		guard: "cloudevents: an event has one kind of data",
		edits: []edit{{"sink/cloudevents.go", `case !data.IsNull() && !encoded.IsNull():`, `case false:`}},
		pkg:   sinks, tests: []string{"TestWhatIsNoCloudEventIsToldWhy"},
	},
	{
		guard: "cloudevents: a batch of events is refused",
		edits: []edit{{"sink/cloudevents.go", `if bytes.HasPrefix(kind, `, `if false && bytes.HasPrefix(kind, `}},
		pkg:   sinks, tests: []string{"TestWhatIsNoCloudEventIsToldWhy"},
	},
	{
		guard: "filter: what doesn't pass is skipped",
		edits: []edit{{mapping, `err != nil || !yes {`, `err != nil || !yes && m == nil {`}},
		pkg:   sinks, tests: []string{"TestAFilterSkips"},
	},
	{
		guard: "filter: what is skipped asks no memory",
		edits: []edit{{"inbox/item.go", `return !it.Skip`, `return true`}},
		tests: []string{"TestASkippedMessageAsksNoMemory"},
	},
	{
		guard: "expressions: computed numbers are kept out of exact columns",
		edits: []edit{{pgPlan, `	if exact {`, `	if exact && false {`}},
		pkg:   pg, tests: []string{"TestComputedNumbersAreRefusedWhereTheColumnIsExact"},
	},
	{
		guard: "expressions: where a message stands is no part of its digest",
		edits: []edit{{"sink/digest.go", `if v.flags&isPlace != 0 {`, `if false {`}},
		pkg:   sinks, tests: []string{"TestARepeatThatStandsElsewhereIsTheSame"},
	},
	{
		guard: "id: parts can't run together",
		edits: []edit{{"id.go", `		h.Write(size[:])
`, ``}},
		pkg: sinks, tests: []string{"TestPartsOfAnIDCanNotRunTogether"},
	},
	{
		guard: "json: names twice are refused",
		edits: []edit{{"sink/json.go", `if s.met[kid.number] == s.round {`, `if false {`}},
		pkg:   sinks, tests: []string{"TestNamesTwiceAreRefusedWhereTheyGiveTwoAnswers"},
	},
	{
		guard: "times: one without a zone is refused where none is named",
		edits: []edit{{encodeTimes, `	if e.zone == nil {
		return 0, errEncodeZone`, `	if e.zone == nil {
		return m.wall, nil
	}
	if false {
		return 0, errEncodeZone`}},
		pkg: pg, tests: []string{"TestValuesAreExactOrRefused"},
	},
	{
		guard: "times: a number is refused where no unit is named",
		edits: []edit{{encodeTimes, `	if e.unit == "" {
		return encodeMoment{}, errEncodeEpoch`, `	if e.unit == "" {
		e.unit = EpochSeconds
	}
	if e.unit == "" {
		return encodeMoment{}, errEncodeEpoch`}},
		pkg: pg, tests: []string{"TestValuesAreExactOrRefused"},
	},
	{
		guard: "start: latest and topics by an expression exclude one another",
		edits: []edit{{"internal/config/file.go", `if f.Matching != "" && f.Start.Mode == StartLatest {`, `if f.Matching != "" && false {`}},
		pkg:   "./internal/config", tests: []string{"TestBrokenFilesNamePlaceAndNearestName"},
	},
}

package mutants

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
}

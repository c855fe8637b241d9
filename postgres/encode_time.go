package postgres

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/semelhq/semel/sink"
)

// Reasons to refuse a time.
var (
	errEncodeTime      = errors.New("not a time: RFC 3339, or infinity")
	errEncodeNoDay     = errors.New("no such day or time of day")
	errEncodeTimeRange = errors.New("outside the years that PostgreSQL has")
	errEncodeZone      = errors.New("a time without a zone, and the route names none (times.zone)")
	errEncodeToZone    = errors.New("an instant into a column without zone, and the route names none (times.zone)")
	errEncodeEpoch     = errors.New("a number into a time column without a declared unit (times.epoch)")
	errEncodeTimeOfDay = errors.New("a time of day into a date column: it would be cut off")
	errEncodeHasZone   = errors.New("a zone in a time of day: the column has none")
	errEncodeHasDay    = errors.New("a day in a time-of-day column")
)

// EpochUnit is the unit of numbers that are times.
type EpochUnit string

const (
	EpochSeconds EpochUnit = "s"
	EpochMillis  EpochUnit = "ms"
	EpochMicros  EpochUnit = "us"
	EpochNanos   EpochUnit = "ns"
)

// encodeTimes is what a route says about times.
type encodeTimes struct {
	zone  *time.Location // of times without one; nil: they are refused
	epoch map[string]EpochUnit
}

func (t encodeTimes) of(c *introspectColumn) encodeTime {
	e := encodeTime{zone: t.zone, unit: t.epoch[c.name], step: 1}
	if c.mod >= 0 && c.mod < 6 { // timestamp(p)
		for range 6 - c.mod {
			e.step *= 10
		}
	}
	return e
}

type encodeTime struct {
	zone *time.Location
	unit EpochUnit
	step int64 // microseconds that the column tells apart
}

const (
	encodeSecond = int64(1_000_000) // in microseconds, as all below
	encodeDay    = 86400 * encodeSecond

	encodeEpoch = 946_684_800 * encodeSecond // 2000-01-01, where PostgreSQL counts from

	encodeTimeMin = -211_813_488_000_000_000 // 4714-11-24 BC, after 2000
	encodeTimeEnd = 9_223_371_331_200_000_000
	encodeDayMin  = -2_451_545
	encodeDayEnd  = 2_145_031_949
)

// A moment is a reading of a clock on a wall, with or without its offset, or an
// instant, or an infinity.
type encodeMoment struct {
	wall     int64 // microseconds since 2000-01-01 00:00 on the wall
	offset   int64 // of the wall's clock, east of UTC
	zoned    bool  // offset is known
	clock    bool  // there was a time of day
	infinite int8
}

func (e encodeTime) moment(v sink.Value) (encodeMoment, error) {
	switch v.Kind {
	case sink.Time:
		return encodeMoment{wall: v.Time().UnixMicro() - encodeEpoch, zoned: true, clock: true}, nil
	case sink.Number, sink.Int:
		return e.fromEpoch(v)
	case sink.String, sink.Text:
	default:
		return encodeMoment{}, errEncodeTime
	}
	var buf [64]byte
	text := v.Text(buf[:])
	if what, negative := encodeSpecial(text); what == "inf" {
		if negative {
			return encodeMoment{infinite: -1}, nil
		}
		return encodeMoment{infinite: 1}, nil
	}
	if e.unit != "" {
		if _, ok := sink.ParseDecimal(text); ok {
			return e.fromEpoch(v)
		}
	}
	return encodeParse(text)
}

// fromEpoch counts from 1970 in the declared unit, exactly or not at all.
func (e encodeTime) fromEpoch(v sink.Value) (encodeMoment, error) {
	if e.unit == "" {
		return encodeMoment{}, errEncodeEpoch
	}
	var buf [64]byte
	d, ok := sink.ParseDecimal(v.Text(buf[:]))
	if !ok {
		return encodeMoment{}, errEncodeTime
	}
	switch e.unit {
	case EpochSeconds:
		d.Exponent += 6
	case EpochMillis:
		d.Exponent += 3
	case EpochNanos:
		d.Exponent -= 3
	}
	n, err := d.Int64()
	switch {
	case errors.Is(err, sink.ErrFraction):
		return encodeMoment{}, errEncodeRounded
	case err != nil || n < math.MinInt64+encodeEpoch:
		return encodeMoment{}, errEncodeTimeRange
	}
	return encodeMoment{wall: n - encodeEpoch, zoned: true, clock: true}, nil
}

// encodeParse reads 2026-03-29, 2026-03-29T02:30:00.5+02:00, with a space for
// the T, with or without seconds and zone.
func encodeParse(b []byte) (m encodeMoment, err error) {
	year, b, ok := encodeYear(b)
	if !ok {
		return m, errEncodeTime
	}
	month, b, ok1 := encodeTwo(b)
	if !ok1 || len(b) == 0 || b[0] != '-' {
		return m, errEncodeTime
	}
	day, b, ok2 := encodeTwo(b[1:])
	if !ok2 {
		return m, errEncodeTime
	}
	if year < -4800 || year > 294276 {
		return m, errEncodeTimeRange
	}
	if month < 1 || month > 12 || day < 1 || day > encodeDaysIn(year, month) {
		return m, errEncodeNoDay
	}
	m.wall = int64(encodeDays(year, month, day)) * encodeDay
	if len(b) == 0 {
		return m, nil
	}
	if b[0]|0x20 == 'z' && len(b) == 1 { // a day of no zone, as some write it
		m.zoned = true
		return m, nil
	}
	if b[0] != 'T' && b[0] != 't' && b[0] != ' ' {
		return m, errEncodeTime
	}
	of, rest, err := encodeParseClock(b[1:])
	if err != nil {
		return m, err
	}
	m.wall += of
	m.clock = true
	if len(rest) == 0 {
		return m, nil
	}
	m.zoned = true
	m.offset, err = encodeOffset(rest)
	return m, err
}

// encodeYear reads the digits before the hyphen, four at least. With a sign it is
// ISO 8601's expanded form, in which 0 is the year before 1, and -43 is 44 BC.
func encodeYear(b []byte) (year int, rest []byte, ok bool) {
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		year, rest, ok = encodeYear(b[1:])
		if b[0] == '-' {
			year = -year
		}
		return year, rest, ok && len(b) > 1 && b[1] != '-' && b[1] != '+'
	}
	i := 0
	for i < len(b) && i < 7 && b[i] >= '0' && b[i] <= '9' {
		year = year*10 + int(b[i]-'0')
		i++
	}
	if i < 4 || i == len(b) || b[i] != '-' {
		return 0, nil, false
	}
	return year, b[i+1:], true
}

func encodeTwo(b []byte) (n int, rest []byte, ok bool) {
	if len(b) < 2 || b[0] < '0' || b[0] > '9' || b[1] < '0' || b[1] > '9' {
		return 0, nil, false
	}
	return int(b[0]-'0')*10 + int(b[1]-'0'), b[2:], true
}

// encodeParseClock reads a time of day in microseconds. A leap second is the
// first of the next minute and 24:00 the next midnight, as PostgreSQL takes
// them.
func encodeParseClock(b []byte) (micros int64, rest []byte, err error) {
	hour, b, ok := encodeTwo(b)
	if !ok || len(b) == 0 || b[0] != ':' {
		return 0, nil, errEncodeTime
	}
	minute, b, ok := encodeTwo(b[1:])
	if !ok {
		return 0, nil, errEncodeTime
	}
	second, fraction := 0, int64(0)
	if len(b) > 0 && b[0] == ':' {
		if second, b, ok = encodeTwo(b[1:]); !ok {
			return 0, nil, errEncodeTime
		}
		if len(b) > 0 && (b[0] == '.' || b[0] == ',') {
			i := 1
			for scale := encodeSecond / 10; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
				if scale == 0 && b[i] != '0' {
					return 0, nil, errEncodeRounded
				}
				fraction += int64(b[i]-'0') * scale
				scale /= 10
			}
			if i == 1 {
				return 0, nil, errEncodeTime
			}
			b = b[i:]
		}
	}
	micros = (int64(hour)*3600+int64(minute)*60+int64(second))*encodeSecond + fraction
	if minute > 59 || second > 60 || second == 60 && fraction > 0 || micros > encodeDay || hour > 24 {
		return 0, nil, errEncodeNoDay
	}
	return micros, b, nil
}

// encodeOffset reads Z, +02, +0200, +02:00, +02:00:00; east is positive.
func encodeOffset(b []byte) (int64, error) {
	if len(b) == 1 && b[0]|0x20 == 'z' {
		return 0, nil
	}
	if b[0] != '+' && b[0] != '-' {
		return 0, errEncodeTime
	}
	negative := b[0] == '-'
	b = b[1:]
	total, unit := int64(0), 3600*encodeSecond
	for i := 0; i < 3 && (i == 0 || len(b) > 0); i++ {
		if i > 0 && b[0] == ':' {
			b = b[1:]
		}
		n, rest, ok := encodeTwo(b)
		if !ok || i > 0 && n > 59 || n > 15 && i == 0 {
			return 0, errEncodeTime
		}
		total += int64(n) * unit
		unit /= 60
		b = rest
	}
	if len(b) > 0 {
		return 0, errEncodeTime
	}
	if negative {
		total = -total
	}
	return total, nil
}

func encodeDaysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// encodeDays counts from 2000-01-01 in the Gregorian calendar.
func encodeDays(year, month, day int) int {
	if month <= 2 {
		year--
		month += 12
	}
	year += 4800 // twelve times 400 years, so that all is above zero
	return 365*year + year/4 - year/100 + year/400 + (153*(month-3)+2)/5 + day - 1 - 730425 - 12*146097
}

// instant is the moment as microseconds after 2000 in UTC.
func (e encodeTime) instant(m encodeMoment) (int64, error) {
	if m.zoned {
		return m.wall - m.offset, nil
	}
	if e.zone == nil {
		return 0, errEncodeZone
	}
	return m.wall - e.offsetAtWall(m.wall), nil
}

// offsetAtWall is the zone's offset when its clocks show this. A time that the
// clocks skip is read by the offset before the change, one that they show twice
// by the one after it: PostgreSQL does the same.
func (e encodeTime) offsetAtWall(wall int64) int64 {
	before, after := e.offsetAt(wall-encodeDay), e.offsetAt(wall+encodeDay)
	if before == after {
		return before
	}
	first, second := e.offsetAt(wall-before) == before, e.offsetAt(wall-after) == after
	if first && !second || !first && !second {
		return before
	}
	return after
}

func (e encodeTime) offsetAt(instant int64) int64 {
	_, seconds := time.UnixMicro(instant + encodeEpoch).In(e.zone).Zone()
	return int64(seconds) * encodeSecond
}

// encodeTimestamp is timestamptz if zoned, else timestamp: a wall's clock in the
// route's zone.
type encodeTimestamp struct {
	encodeTime
	zoned bool
}

func (e encodeTimestamp) value(v sink.Value) (int64, error) {
	m, err := e.moment(v)
	if err != nil {
		return 0, err
	}
	switch m.infinite {
	case 1:
		return math.MaxInt64, nil
	case -1:
		return math.MinInt64, nil
	}
	t := m.wall
	if e.zoned {
		if t, err = e.instant(m); err != nil {
			return 0, err
		}
	} else if m.zoned {
		if e.zone == nil {
			return 0, errEncodeToZone
		}
		t = m.wall - m.offset
		t += e.offsetAt(t)
	}
	switch {
	case t < encodeTimeMin || t >= encodeTimeEnd:
		return 0, errEncodeTimeRange
	case t%e.step != 0:
		return 0, errEncodeRounded
	}
	return t, nil
}

func (e encodeTimestamp) binary(dst []byte, v sink.Value) ([]byte, error) {
	t, err := e.value(v)
	return binary.BigEndian.AppendUint64(dst, uint64(t)), err
}

func (e encodeTimestamp) text(dst []byte, v sink.Value) ([]byte, error) {
	t, err := e.value(v)
	switch {
	case err != nil:
		return dst, err
	case t == math.MaxInt64:
		return append(dst, "infinity"...), nil
	case t == math.MinInt64:
		return append(dst, "-infinity"...), nil
	}
	layout := "2006-01-02 15:04:05.999999"
	if e.zoned {
		layout += "Z07:00"
	}
	return encodeFormat(dst, t, layout), nil
}

// encodeFormat writes years before Christ as PostgreSQL does.
func encodeFormat(dst []byte, t int64, layout string) []byte {
	u := time.Unix(t/encodeSecond+encodeEpoch/encodeSecond, t%encodeSecond*1000).UTC()
	if u.Year() > 0 {
		return u.AppendFormat(dst, layout)
	}
	dst = fmt.Appendf(dst, "%04d", 1-u.Year())
	return append(u.AppendFormat(dst, strings.TrimPrefix(layout, "2006")), " BC"...)
}

// encodeDate takes a day; a midnight too, since many senders have no other way
// to write one. The day is the one that is written, whatever the zone.
type encodeDate struct{ encodeTime }

func (e encodeDate) value(v sink.Value) (int32, error) {
	m, err := e.moment(v)
	if err != nil {
		return 0, err
	}
	switch m.infinite {
	case 1:
		return math.MaxInt32, nil
	case -1:
		return math.MinInt32, nil
	}
	if m.wall%encodeDay != 0 {
		return 0, errEncodeTimeOfDay
	}
	day := m.wall / encodeDay
	if day < encodeDayMin || day >= encodeDayEnd {
		return 0, errEncodeTimeRange
	}
	return int32(day), nil
}

func (e encodeDate) binary(dst []byte, v sink.Value) ([]byte, error) {
	day, err := e.value(v)
	return binary.BigEndian.AppendUint32(dst, uint32(day)), err
}

func (e encodeDate) text(dst []byte, v sink.Value) ([]byte, error) {
	day, err := e.value(v)
	switch {
	case err != nil:
		return dst, err
	case day == math.MaxInt32:
		return append(dst, "infinity"...), nil
	case day == math.MinInt32:
		return append(dst, "-infinity"...), nil
	}
	return encodeFormat(dst, int64(day)*encodeDay, "2006-01-02"), nil
}

// encodeClock takes a time of day.
type encodeClock struct{ encodeTime }

func (e encodeClock) value(v sink.Value) (int64, error) {
	switch v.Kind {
	case sink.String, sink.Text:
	case sink.Number, sink.Int:
		return 0, errEncodeEpoch
	default:
		return 0, errEncodeTime
	}
	var buf [64]byte
	text := v.Text(buf[:])
	micros, rest, err := encodeParseClock(text)
	switch {
	case err != nil:
		if _, isDay := encodeParse(text); isDay == nil {
			return 0, errEncodeHasDay
		}
		return 0, err
	case len(rest) > 0 && !(len(rest) == 1 && rest[0]|0x20 == 'z' && e.zone == time.UTC):
		return 0, errEncodeHasZone
	case micros%e.step != 0:
		return 0, errEncodeRounded
	}
	return micros, nil
}

func (e encodeClock) binary(dst []byte, v sink.Value) ([]byte, error) {
	t, err := e.value(v)
	return binary.BigEndian.AppendUint64(dst, uint64(t)), err
}

func (e encodeClock) text(dst []byte, v sink.Value) ([]byte, error) {
	t, err := e.value(v)
	if t == encodeDay {
		return append(dst, "24:00:00"...), err
	}
	return time.UnixMicro(t).UTC().AppendFormat(dst, "15:04:05.999999"), err
}

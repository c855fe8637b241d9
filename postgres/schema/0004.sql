-- How a redrive closed a dead letter: applied, or what else it came to. Those that wait for one are few among many.
ALTER TABLE semel.dead_letter ADD COLUMN outcome text;
CREATE INDEX dead_letter_redrive ON semel.dead_letter (consumer, number) WHERE state = 'redrive';

"""Which tests of the contract do not run on a cluster, and why. All others do, on a nats-server with a stream each.

A test that asks for what JetStream cannot do counts as passed when that is refused with `NotSupported`:
docs/reference/backends.md has the table of that, and a probe for each line. `tests/cluster` tests what is left out
here with a cluster's own offsets and times.
"""

from __future__ import annotations

OFFSETS = frozenset(
    {
        "test_a_block_acks_and_a_failing_one_nacks",
        "test_a_dead_record_makes_way_for_the_next_of_its_key",
        "test_a_delivery_whose_block_was_left_goes_back_if_its_transaction_is_given_up",
        "test_a_gap_is_reported_with_the_batch_that_follows_it",
        "test_a_gap_of_a_pattern_is_reported_in_sequences_and_counts_only_its_own",
        "test_a_gap_says_from_where_to_where_and_how_many",
        "test_a_gap_whose_records_all_expired_is_still_reported",
        "test_a_gap_with_nothing_after_it_is_reported_with_the_next_record",
        "test_a_group_can_be_reset_by_offset",
        "test_a_group_on_a_pattern_gets_topics_that_are_made_later",
        "test_a_key_keeps_its_order_through_a_nack_while_others_go_on",
        "test_a_member_holds_no_more_than_its_prefetch",
        "test_a_message_id_counts_for_its_topic_alone",
        "test_a_message_id_counts_for_one_topic_and_for_two_minutes",
        "test_a_message_id_is_forgotten_with_its_topic",
        "test_a_message_id_is_stored_once_and_gives_the_first_position_again",
        "test_a_nacked_record_comes_back_with_attempt_two",
        "test_a_name_whose_topic_was_made_anew_starts_over_and_reports_it",
        "test_a_named_subscription_that_was_left_is_seen_the_same_way",
        "test_a_new_group_may_start_elsewhere",
        "test_a_pattern_reads_in_the_order_of_publishing",
        "test_a_pattern_sees_all_of_it_at_once_and_in_the_order_of_the_publishes",
        "test_a_place_is_seen_with_its_lag",
        "test_a_position_of_an_earlier_life_of_the_topic_starts_at_earliest_and_tells",
        "test_a_publish_gets_the_offset_that_it_expects_or_is_refused",
        "test_a_record_carries_all_that_was_published_with_it",
        "test_a_reset_without_members_counts_for_those_who_come",
        "test_a_result_that_cannot_be_published_fails_the_record",
        "test_a_topic_made_again_has_a_new_epoch_and_starts_at_zero",
        "test_a_topic_made_anew_under_a_pattern_goes_on",
        "test_a_topic_that_is_made_by_the_transaction_has_the_offsets_that_are_expected",
        "test_a_wrong_value_is_refused_at_the_listener_with_its_field",
        "test_a_wrong_value_is_refused_with_its_field",
        "test_acks_come_in_any_order",
        "test_after_max_deliver_attempts_a_record_is_a_dead_letter",
        "test_all_of_it_is_there_after_the_block_and_nothing_before",
        "test_all_places_are_stored_or_none",
        "test_an_expected_mark_that_is_another_is_a_conflict",
        "test_an_offset_beyond_the_end_is_refused_with_the_range",
        "test_an_offset_starts_at_that_record",
        "test_an_on_gap_that_raises_does_not_stop_the_reader",
        "test_batches_hold_what_is_there",
        "test_bounds_are_reported_by_name",
        "test_bounds_tell_where_a_sequence_lies_in_every_topic",
        "test_bounds_tell_where_a_time_lies",
        "test_cancelling_a_stuck_block_subscriber_frees_its_publishers",
        "test_disconnect_lets_fewer_drops_pass",
        "test_drop_newest_keeps_the_oldest_and_tells_what_went",
        "test_drop_oldest_keeps_the_newest_and_tells_what_went",
        "test_drops_that_were_never_reported_count_when_a_subscription_ends",
        "test_gaps_and_records_together_cover_every_offset",
        "test_in_a_transaction_an_expected_offset_counts_what_it_publishes_itself",
        "test_of_a_topic_that_was_made_again_nothing_is_read",
        "test_on_drop_gets_every_dropped_record_once",
        "test_on_gap_is_called_for_every_gap",
        "test_one_name_on_two_patterns_is_two_groups",
        "test_publish_many_is_all_or_nothing",
        "test_publish_many_is_contiguous_and_returns_first_and_last",
        "test_publish_nowait_appends_at_once",
        "test_publish_returns_the_position_of_the_record",
        "test_reading_an_aging_topic_does_not_stop_the_clock_of_what_follows",
        "test_records_that_come_one_by_one_go_round",
        "test_sequences_go_on_after_a_topic_was_deleted",
        "test_sequences_rise_by_one_over_all_topics",
        "test_strict_raises_and_ends_the_subscription",
        "test_the_bytes_bound_as_well_as_the_count",
        "test_the_order_of_one_topic_is_total_and_the_same_for_all",
        "test_the_start_counts_only_for_a_new_group",
        "test_topics_count_records_and_bytes",
        "test_what_a_failing_member_held_goes_back_at_once",
        "test_what_a_handler_returns_is_published",
        "test_what_a_member_held_goes_back_at_once_and_in_order",
        "test_what_cannot_be_decoded_ends_a_strict_subscription",
        "test_records_that_cannot_be_decoded_are_reported_as_a_gap_and_reading_continues",
        "test_records_that_cannot_be_decoded_are_reported_with_the_next_batch",
        "test_what_does_not_fit_the_type_of_a_topic_stops_all_of_it",
        "test_what_goes_back_is_handed_out_before_what_is_newer",
        "test_records_published_without_waiting_are_distinguished_too",
        "test_what_was_trimmed_is_not_within_them",
        "test_a_subscriber_under_the_same_name_continues_there",
    }
)
"""They write offsets down as numbers from 0 on, without holes."""

TIMES = frozenset(
    {
        "test_a_batch_that_does_not_get_full_waits_max_wait_from_its_first_record",
        "test_a_cancelled_record_is_given_to_no_group",
        "test_a_delay_that_has_passed_when_the_group_comes_is_over",
        "test_a_delayed_record_comes_at_its_time",
        "test_a_delivery_knows_that_its_lease_has_ended",
        "test_a_firing_that_fails_is_tried_again_and_its_result_is_published",
        "test_a_function_that_exceeds_its_time_is_reported_and_its_record_is_not_acked",
        "test_a_group_can_be_reset_by_time",
        "test_a_group_that_moves_or_has_nothing_to_do_is_not_warned_about",
        "test_a_group_that_stops_moving_is_warned_about_once_per_episode",
        "test_a_group_without_members_is_warned_about_once",
        "test_a_key_keeps_its_order_when_a_lease_ends",
        "test_a_lease_that_ended_stops_all_of_it",
        "test_a_lease_that_ends_gives_the_record_to_another_member",
        "test_a_little_late_is_not_missed",
        "test_a_member_that_never_answers_counts_as_a_failure",
        "test_a_message_id_may_be_used_again_after_a_cancellation",
        "test_a_pattern_starts_at_a_time",
        "test_a_paused_group_is_not_warned_about",
        "test_a_record_that_expires_while_it_waits_for_another_attempt_is_skipped",
        "test_a_record_that_has_not_expired_is_read",
        "test_a_reply_that_does_not_come_in_time",
        "test_a_time_in_any_zone_is_the_same_moment",
        "test_a_time_starts_at_the_first_record_that_is_not_older",
        "test_a_topic_begins_to_age_when_its_retention_is_set",
        "test_a_topic_says_what_its_groups_do_with_failures",
        "test_acking_a_neighbour_does_not_shorten_an_extended_lease",
        "test_an_expired_record_is_skipped_and_counted",
        "test_an_expired_record_is_skipped_and_counted_apart_from_drops",
        "test_an_expired_record_makes_way_for_the_next_of_its_key",
        "test_delayed_records_come_in_the_order_of_their_times",
        "test_extending_keeps_the_lease",
        "test_failures_back_off",
        "test_failures_back_off_with_jitter",
        "test_it_fires_once_at_each_due_time_however_many_run_it",
        "test_more_delayed_records_than_the_window_do_not_fill_it",
        "test_no_more_than_max_ack_pending_are_out_however_many_members_there_are",
        "test_replies_of_all_responders_are_gathered_until_the_deadline",
        "test_retention_age_is_looked_at_even_when_nothing_is_published",
        "test_the_age_is_that_of_the_oldest_record_that_is_not_settled",
        "test_the_default_backoff_grows",
        "test_time_never_goes_back",
        "test_what_a_busy_member_has_not_begun_with_does_not_run_out_of_time",
        "test_what_a_frozen_member_held_goes_to_another_when_its_lease_ends",
        "test_records_that_aged_out_are_reported_with_the_following_ones",
        "test_what_is_acked_never_comes_again",
        "test_what_makes_no_sense_is_refused",
        "test_what_waited_unseen_when_the_lease_ended_was_no_attempt",
        "test_what_was_missed_is_made_up_for_by_policy",
        "test_a_member_that_keeps_acking_keeps_the_rest",
        "test_without_jitter_the_pauses_are_exact",
    }
)
"""They move the clock by many seconds, or look what happened by a moment: a real server does not follow."""

SHARES = frozenset(
    {
        "test_a_batch_may_hold_records_with_keys_and_others",
        "test_a_key_is_never_with_two_functions_at_once",
        "test_a_key_is_with_one_member_at_a_time",
        "test_a_key_keeps_its_order_when_its_member_is_lost",
        "test_a_key_that_is_stuck_does_not_hold_up_what_has_no_key",
        "test_a_member_may_bound_its_bytes_too",
        "test_a_member_that_is_done_gets_what_a_busy_one_has_not_begun",
        "test_a_member_that_joins_late_gets_its_share",
        "test_a_member_with_less_room_gets_less",
        "test_a_paused_group_takes_nothing_back",
        "test_a_record_that_was_taken_back_was_not_tried",
        "test_a_work_queue_each_record_goes_to_one_member",
        "test_no_member_with_room_starves_while_another_is_fast",
        "test_one_member_answers_a_request",
        "test_records_with_keys_are_taken_back_and_stay_in_order",
        "test_several_groups_each_see_everything_and_share_it_inside",
        "test_what_a_cancelled_member_held_goes_back_at_once",
        "test_what_was_left_is_done_by_the_next_run",
        "test_what_was_taken_in_a_batch_is_begun_and_the_rest_is_taken_back",
    }
)
"""They count on how a group shares records among its members: on a cluster these share messages of many records, and
keys share eight buckets, whose order among each other is not that of the topic.
"""

FIGURES = frozenset(
    {
        "test_a_group_counts_its_members_as_subscribers_of_the_topic",
        "test_a_group_tells_how_far_it_is",
        "test_a_nack_with_a_delay_comes_back_then",
        "test_a_snapshot_stands_still",
        "test_a_subscription_says_what_it_is",
        "test_a_topic_that_was_only_subscribed_to_goes_with_its_last_subscription",
        "test_each_member_tells_what_it_holds_and_did",
        "test_lag_counts_all_that_is_published_and_not_settled",
        "test_lag_is_what_waits_to_be_read",
        "test_negative_times_are_refused_and_change_nothing",
        "test_settling_after_leaving_says_so_and_changes_nothing",
        "test_settling_twice_says_so_and_changes_nothing",
        "test_some_topics_can_be_asked_for_and_the_sums_are_of_all",
        "test_stop_finishes_what_is_in_hand",
        "test_topics_are_made_on_first_use_and_listed_by_name",
        "test_what_was_published_is_delivered_dropped_or_waiting",
    }
)
"""They ask for figures at once. On a cluster these come over another connection, count what is handed out by messages,
and have no row for a topic that is only subscribed to; delayed and failed records are not told apart there.
"""

REFUSED = frozenset(
    {
        "test_a_handler_may_ack_in_a_transaction_of_its_own",
        "test_a_subscriber_that_leaves_is_no_longer_waited_for",
        "test_a_task_cancelled_mid_record_leaves_the_others_alone",
        "test_it_names_those_that_stall",
        "test_it_returns_when_every_subscriber_has_asked_for_what_comes_next",
        "test_publish_and_wait_does_not_wait_until_a_busy_member_is_half_empty",
        "test_publish_and_wait_names_the_group_that_stalls",
        "test_publish_and_wait_returns_when_every_group_has_settled_it",
        "test_what_is_kept_in_memory_only_is_not_staged",
    }
)
"""They use what a cluster refuses with `NotSupported`, in another task or with the words of another backend."""

ARRIVAL = frozenset(
    {
        "test_a_pattern_loses_the_unread_records_of_a_deleted_topic_and_reports_them",
        "test_a_reader_that_waits_is_notified_of_its_disconnection",
        "test_a_strict_name_resumes_at_what_it_never_read",
        "test_drop_newest_takes_again_as_soon_as_one_record_is_done_with",
        "test_gathering_ends_when_the_replies_are_too_large",
        "test_strict_raises_for_batches_too",
    }
)
"""They know what a slow reader has received by when, or reply with 1 MiB, which is more than a message may have."""

NOT_ON_CLUSTER = OFFSETS | TIMES | SHARES | FIGURES | REFUSED | ARRIVAL

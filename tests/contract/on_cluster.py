"""Which tests of the contract run on a cluster: a nats-server, with a stream for each test.

Left out are tests that move a clock, which a real server does not follow; that count on offsets without holes; and
that are about what a cluster refuses (`block`, `hold`, stages, producers): docs/reference/backends.md
has the table of that, and a probe for each line. `tests/cluster` says the same with a cluster's own offsets and times.
"""

OLD: dict = {
    "test_bounds": frozenset(
        {
            "test_a_question_is_about_a_time_or_a_sequence",
            "test_a_typed_topic_tells_its_schema",
            "test_what_makes_no_sense_is_refused",
        }
    ),
    "test_deliveries": frozenset(
        {
            "test_acking_a_neighbour_does_not_shorten_an_extended_lease",
            "test_every_delivery_may_be_settled_from_another_task",
            "test_negative_times_are_refused_and_change_nothing",
            "test_one_ack_for_a_whole_batch",
            "test_settling_after_leaving_says_so_and_changes_nothing",
            "test_settling_twice_says_so_and_changes_nothing",
            "test_what_a_busy_member_has_not_begun_with_does_not_run_out_of_time",
            "test_what_is_acked_never_comes_again",
            "test_whoever_keeps_acking_keeps_the_rest",
        }
    ),
    "test_gaps": frozenset(
        {
            "test_above_one_percent_it_is_warned_about_once",
            "test_one_percent_or_less_is_no_reason_to_warn",
            "test_strict_is_silent_while_nothing_is_missed",
        }
    ),
    "test_handlers": frozenset(
        {
            "test_a_cancelled_future_inside_a_handler_is_the_records_failure_not_the_workers",
            "test_a_failure_is_tried_again_and_after_its_retries_a_dead_letter_with_the_error",
            "test_a_function_may_ask_for_the_delivery_itself",
            "test_a_function_that_blocks_does_not_block_the_loop",
            "test_a_function_that_takes_two_things_is_refused_where_it_is_written",
            "test_a_second_run_is_refused_while_one_runs",
            "test_an_error_of_the_middleware_is_one_of_the_record",
            "test_how_long_functions_take_is_counted",
            "test_middleware_is_around_every_function_the_first_one_outermost",
            "test_middleware_may_stand_in_for_the_function",
            "test_options_that_make_no_sense_are_refused_where_they_are_written",
            "test_what_a_function_cannot_be_given_is_a_dead_letter",
            "test_what_can_never_succeed_is_rejected_at_once",
        }
    ),
    "test_lifecycle": frozenset(
        {
            "test_a_subscription_is_entered_once",
            "test_a_subscription_is_read_in_one_way",
            "test_a_subscription_is_read_inside_its_block",
            "test_a_subscription_left_while_another_task_reads_it_ends_there_too",
            "test_closing_the_broker_ends_a_waiting_reader",
            "test_closing_twice_is_harmless",
            "test_leaving_the_block_by_an_exception_ends_the_subscription",
            "test_leaving_the_block_ends_the_subscription",
            "test_reading_after_the_block_ends_at_once",
            "test_two_anonymous_subscriptions_have_labels_of_their_own",
            "test_two_subscribers_one_of_which_raises",
        }
    ),
    "test_marks": frozenset(
        {
            "test_a_conflict_of_one_mark_counts_more_than_another_that_is_past",
            "test_a_mark_is_forgotten_with_none",
            "test_a_transaction_moves_each_mark_once",
            "test_marks_of_different_types_are_not_compared",
            "test_the_largest_marks_are_kept_as_they_are",
            "test_what_cannot_be_a_mark_is_refused_in_the_block",
        }
    ),
    "test_patterns": frozenset(
        {
            "test_a_star_is_one_token_and_an_arrow_is_the_rest",
        }
    ),
    "test_places": frozenset(
        {
            "test_hold_is_yes_no_or_unsaid",
            "test_what_is_no_place_is_refused",
        }
    ),
    "test_publishing": frozenset(
        {
            "test_a_delay_and_an_expiry_are_seconds",
            "test_a_priority_is_a_whole_number_from_0_to_9",
            "test_a_record_beyond_the_limit_is_refused_and_nothing_is_stored",
            "test_a_record_that_has_not_expired_is_read",
            "test_a_value_that_is_neither_bytes_nor_text_is_refused",
            "test_a_value_that_is_written_into_after_publishing_stays_as_it_was",
            "test_a_wrong_message_id_is_refused",
            "test_a_wrong_topic_name_is_refused_everywhere",
            "test_a_wrong_traceparent_is_refused",
            "test_an_empty_value_is_a_value",
            "test_everything_published_before_closing_is_still_read",
            "test_publish_many_gives_each_value_its_key",
            "test_publish_many_of_nothing_is_refused",
            "test_publish_many_takes_a_sequence_of_values",
            "test_the_callers_traceparent_is_kept",
            "test_without_one_every_record_has_its_own_and_all_subscribers_see_the_same",
            "test_wrong_keys_and_headers_are_refused",
        }
    ),
    "test_request": frozenset(
        {
            "test_a_reply_may_be_text_or_any_value",
            "test_a_reply_may_go_to_a_topic_of_the_callers_choice",
            "test_a_reply_that_does_not_come_in_time",
            "test_a_reply_to_an_inbox_that_is_not_there_is_not_taken",
            "test_a_request_that_nobody_listens_to_fails_at_once",
            "test_a_requester_is_told_whoever_gives_its_request_up",
            "test_a_wrong_request_is_refused",
            "test_only_a_request_can_be_replied_to",
            "test_the_first_of_several_replies_counts",
        }
    ),
    "test_subscribing": frozenset(
        {
            "test_a_batch_that_does_not_get_full_waits_max_wait_from_its_first_record",
            "test_a_batch_waits_for_more_until_it_is_full",
            "test_a_cancelled_iterator_does_not_read_beside_another",
            "test_a_name_goes_on_after_the_last_record_that_was_asked_beyond",
            "test_a_name_that_read_nothing_stays_where_it_was",
            "test_a_name_that_would_act_on_a_terminal_is_refused",
            "test_a_new_name_starts_at_earliest",
            "test_a_position_starts_at_its_record",
            "test_a_read_that_was_given_up_loses_nothing",
            "test_a_subscriber_that_tries_to_change_what_it_got_harms_nobody",
            "test_a_waiting_reader_gets_what_is_published_later",
            "test_a_wrong_bound_is_refused",
            "test_a_wrong_pattern_is_refused",
            "test_a_wrong_policy_or_type_is_refused",
            "test_a_wrong_start_is_refused",
            "test_a_wrong_subscription_name_is_refused",
            "test_an_anonymous_subscription_starts_at_what_is_published_next",
            "test_an_iteration_goes_on_where_one_was_closed",
            "test_an_iterator_goes_on_after_a_read_that_was_cancelled",
            "test_an_iterator_goes_on_after_a_read_that_was_cancelled_before_it_ran",
            "test_an_offset_makes_no_sense_for_a_pattern",
            "test_batches_hold_at_most_max_records",
            "test_it_starts_where_the_block_is_entered_not_where_reading_begins",
            "test_one_name_is_one_open_subscription",
            "test_reading_goes_on_after_a_break_where_it_was",
            "test_two_subscribers_read_at_their_own_pace",
            "test_waiting_for_a_full_batch_never_makes_a_subscriber_drop",
            "test_wrong_bounds_of_a_batch_are_refused",
        }
    ),
    "test_topics": frozenset(
        {
            "test_a_name_comes_back_to_a_topic_that_was_gone_meanwhile",
            "test_a_topic_can_be_deleted_through_its_handle",
            "test_an_unknown_option_suggests_the_nearest",
            "test_deleting_a_topic_tells_its_subscribers",
            "test_deleting_what_does_not_exist_is_refused",
            "test_wrong_options_are_refused_by_name",
        }
    ),
    "test_transactions": frozenset(
        {
            "test_a_transaction_is_used_once_and_in_its_block",
            "test_a_typed_topic_encodes_and_refuses_in_the_block",
            "test_an_empty_transaction_is_nothing",
            "test_an_exception_in_the_block_leaves_nothing",
            "test_an_offset_that_is_none_cannot_be_expected",
            "test_cancelling_the_block_leaves_nothing",
            "test_more_than_a_transaction_can_hold_is_refused_in_the_block",
            "test_without_auto_create_an_unknown_topic_stops_all_of_it",
        }
    ),
    "test_typed": frozenset(
        {
            "test_a_batch_of_a_typed_topic_has_typed_values",
            "test_a_pattern_may_be_typed",
            "test_a_subscriber_that_changes_its_value_harms_nobody",
            "test_a_subscription_may_name_the_type_itself",
            "test_a_type_may_only_gain_fields_with_defaults",
            "test_a_type_that_cannot_be_encoded_is_refused",
            "test_a_typed_topic_checks_those_who_did_not_name_its_type",
            "test_values_come_back_as_their_type",
        }
    ),
}
NOT_ON_CLUSTER: frozenset[str] = frozenset()

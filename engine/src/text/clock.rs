//! `strftime_now` for templates: UTC, English names, no time zone data.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats a time like C's `strftime`; directives it does not know stay as they are.
pub(super) fn strftime(format: &str, time: SystemTime) -> String {
    let time = Civil::of(time);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut directive = chars.next();
        // `%-d` is `%d` without padding.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        match directive {
            Some(directive) => match time.field(directive) {
                Some(text) if bare => out.push_str(match text.trim_start_matches(['0', ' ']) {
                    "" => "0",
                    text => text,
                }),
                Some(text) => out.push_str(&text),
                None => out.extend(['%', directive]),
            },
            None => out.push('%'),
        }
    }
    out
}

struct Civil {
    year: i64,
    /// From 1.
    month: usize,
    /// From 1.
    day: i64,
    /// From Sunday.
    weekday: usize,
    /// From 1.
    day_of_year: i64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Civil {
    fn of(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let (days, seconds) = ((since / 86_400).cast_signed(), since % 86_400);
        // Days to a proleptic Gregorian date, over eras of 400 years that start in March (the leap day comes last).
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        let leap = i64::from(year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
        Self {
            year,
            month: usize::try_from(month).unwrap_or(1),
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            // 1 March is day 60, or 61 in a leap year.
            day_of_year: if month > 2 { day_from_march + 60 + leap } else { day_from_march - 305 },
            hour: seconds / 3_600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    fn field(&self, directive: char) -> Option<String> {
        let month = MONTHS[self.month - 1];
        let weekday = DAYS[self.weekday];
        let hour_12 = (self.hour + 11) % 12 + 1;
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour_12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'w' => self.weekday.to_string(),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'D' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'R' => format!("{:02}:{:02}", self.hour, self.minute),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            _ => return None,
        })
    }
}
